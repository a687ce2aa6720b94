// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate/convergence"
)

const (
	// watchInterval is the pause between two reads of the progress.
	watchInterval = 400 * time.Millisecond
	// cancelTimeout is how long libvirt may take to end a transfer that was canceled. Then this process closes its
	// connections, as if it exited, and reads from libvirt where the guest is.
	cancelTimeout = 2 * time.Minute
)

// watch reads the progress of a transfer until it has ended, and takes the steps that it needs to end. drop closes its
// connections.
func (t *Transfers) watch(ctx context.Context, transfer *Transfer, drop func()) {
	logger := log.FromContext(ctx)
	monitor := convergence.New(transfer.rules, t.now())
	throttled, canceled := false, time.Time{}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if transfer.isCanceled() {
			// Repeated: a job that did not exist yet when it was canceled starts all the same, and the call may have failed.
			if err := transfer.source.CancelTransfer(context.WithoutCancel(ctx), transfer.domainName()); err != nil &&
				ctx.Err() == nil {
				logger.Info("The migration is not canceled yet", "error", err.Error())
			}
			if canceled.IsZero() {
				canceled = t.now()
			}
			// In a post-copy the target's guest runs already, and needs the connections.
			if t.now().Sub(canceled) > cancelTimeout && monitor.Mode() != v1.MigrationPostCopy {
				logger.Info("Closing the connections of a canceled transfer that libvirt does not end")
				drop()
			}
			continue
		}
		progress := readProgress(ctx, transfer)
		if progress.Throttle > 0 && !throttled {
			throttled = true
			t.recordEvent(transfer.vmi, v1.Migrating, "SlowDown",
				fmt.Sprintf("The guest is throttled, by %d%% at first: %s.", progress.Throttle, convergence.Rates(progress)))
		}
		step, why := monitor.Decide(t.now(), progress)
		if step == convergence.Continue || transfer.isPerformed() {
			continue
		}
		logger.Info("The transfer does not converge", "step", step.String(), "reason", why)
		if err := t.apply(ctx, transfer, monitor, step, why); err != nil {
			logger.Error(err, "A step of a transfer failed", "step", step.String())
		} else if step != convergence.Abort {
			// The reason of an abort is written to the status.
			t.recordEvent(transfer.vmi, v1.Migrating, monitor.EventAction(step),
				fmt.Sprintf("The migration does not converge (%s): %s.", step, why))
		}
	}
}

// readProgress reads the progress from libvirt. If that fails, it returns the previous progress: a transfer without
// reports does not move.
func readProgress(ctx context.Context, transfer *Transfer) *hypervisor.TransferProgress {
	// Not canceled when the transfer ends: that would close the connection, which is needed next to read where the guest
	// is.
	progress, err := transfer.source.TransferProgress(context.WithoutCancel(ctx), transfer.domainName())
	if err != nil || progress == nil {
		if known := transfer.State().Progress; known != nil {
			return known
		}
		return &hypervisor.TransferProgress{}
	}
	transfer.change(func(s *State) {
		s.Progress, s.MaxDirtyRate = progress, max(s.MaxDirtyRate, progress.DirtyBytesPerSecond)
	})
	return progress
}

// apply takes a step.
func (t *Transfers) apply(
	ctx context.Context, transfer *Transfer, monitor *convergence.Monitor, step convergence.Step, why string,
) error {
	name := transfer.domainName()
	switch step {
	case convergence.RaiseDowntime:
		if err := transfer.source.SetMaxDowntime(ctx, name, monitor.RaisedDowntime()); err != nil {
			return err
		}
		monitor.SetDowntimeRaised()
	case convergence.PostCopy:
		// First: virt-controller keeps the source's Pod during a post-copy, and must read the mode before the target owns the
		// guest.
		if err := t.RecordMode(ctx, transfer.vmi, v1.MigrationPostCopy); err != nil {
			return err
		}
		monitor.SetPostCopyRequested()
		if err := transfer.source.StartPostCopy(ctx, name); err != nil {
			return err
		}
		monitor.SetMode(v1.MigrationPostCopy)
	case convergence.StopAndCopy:
		if err := t.RecordMode(ctx, transfer.vmi, v1.MigrationPaused); err != nil {
			return err
		}
		if err := transfer.source.SetMaxDowntime(ctx, name, convergence.MaxDowntime); err != nil {
			return err
		}
		monitor.SetMode(v1.MigrationPaused)
	case convergence.Abort:
		return transfer.Cancel(ctx, why)
	case convergence.Continue:
		return nil
	}
	return nil
}
