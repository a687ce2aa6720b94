// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"context"
	"testing"
	"testing/synctest"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// slowSource is slow to report the progress of a transfer.
type slowSource struct {
	Source
	called, proceed chan struct{}
	ended           chan error
}

func (s *slowSource) TransferProgress(ctx context.Context, _ string) (*hypervisor.TransferProgress, error) {
	close(s.called)
	select {
	case <-ctx.Done():
	case <-s.proceed:
	}
	s.ended <- ctx.Err()
	return nil, ctx.Err()
}

// Canceling a call to libvirt would close the connection.
func TestReadOfProgressIsNotCanceledByEndOfTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &slowSource{called: make(chan struct{}), proceed: make(chan struct{}), ended: make(chan error, 1)}
		vmi := &v1.VirtualMachineInstance{}
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{}
		transfers := NewTransfers(Options{})
		ctx, stop := context.WithCancel(t.Context())
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			transfers.watch(ctx, &Transfer{vmi: vmi, source: source}, stop)
		}()
		<-source.called
		stop()
		synctest.Wait()
		select {
		case err := <-source.ended:
			t.Fatalf("the call was canceled: %v", err)
		default:
		}
		close(source.proceed)
		if err := <-source.ended; err != nil {
			t.Fatalf("the call was canceled: %v", err)
		}
		<-watched
	})
}
