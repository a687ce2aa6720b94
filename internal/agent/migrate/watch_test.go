// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/convergence"
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

// busySource refuses the first changes of the downtime.
type busySource struct {
	Source
	refusals int
	accepted time.Duration
	pass     uint64
}

func (s *busySource) TransferProgress(context.Context, string) (*hypervisor.TransferProgress, error) {
	s.pass++
	return &hypervisor.TransferProgress{Iteration: s.pass, DirtyBytesPerSecond: 2 << 20, Memory: hypervisor.TransferAmount{
		Total: 1 << 30, Processed: s.pass << 20, Remaining: 1 << 20, BytesPerSecond: 1 << 20,
	}}, nil
}

func (s *busySource) SetMaxDowntime(_ context.Context, _ string, limit time.Duration) error {
	if s.refusals > 0 {
		s.refusals--
		return hypervisor.ErrUnreachable
	}
	s.accepted = limit
	return nil
}

func TestDowntimeIsRaisedAgainAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := &busySource{refusals: 3}
		vmi := &v1.VirtualMachineInstance{}
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{}
		downtime := uint64(200)
		rules := convergence.NewRules(&v1.VMIMConfigurationOptions{MaxDowntimeMs: &downtime}, 0, false)
		transfers := NewTransfers(Options{})
		ctx, stop := context.WithCancel(t.Context())
		watched := make(chan struct{})
		go func() {
			defer close(watched)
			transfers.watch(ctx, &Transfer{vmi: vmi, source: source, rules: rules}, stop)
		}()
		time.Sleep(20 * watchInterval)
		stop()
		<-watched
		if source.refusals > 0 || source.accepted != 200*time.Millisecond {
			t.Errorf("%d refusals are left, and %s were accepted", source.refusals, source.accepted)
		}
	})
}
