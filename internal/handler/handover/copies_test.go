// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"context"
	"testing"
	"testing/synctest"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// slowMachine takes its time to say how far a copy is.
type slowMachine struct {
	Machine
	asked, answer chan struct{}
	gaveUp        chan error
}

func (m *slowMachine) CopyProgress(ctx context.Context, _ string) (*hypervisor.CopyProgress, error) {
	close(m.asked)
	select {
	case <-ctx.Done():
	case <-m.answer:
	}
	m.gaveUp <- ctx.Err()
	return nil, ctx.Err()
}

// A call to libvirt that is given up costs the connection.
func TestALookAtACopyIsNotGivenUpWhenTheCopyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine := &slowMachine{asked: make(chan struct{}), answer: make(chan struct{}), gaveUp: make(chan error, 1)}
		vmi := &v1.VirtualMachineInstance{}
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{}
		copies := NewCopies(CopiesOptions{})
		ctx, copied := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			copies.watch(ctx, &Copy{vmi: vmi, machine: machine}, copied)
		}()
		<-machine.asked
		copied()
		synctest.Wait()
		select {
		case err := <-machine.gaveUp:
			t.Fatalf("the call was given up: %v", err)
		default:
		}
		close(machine.answer)
		if err := <-machine.gaveUp; err != nil {
			t.Fatalf("the call was given up: %v", err)
		}
		<-ended
	})
}
