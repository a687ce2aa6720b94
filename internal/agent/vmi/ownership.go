// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/migration"
	"github.com/vireo-project/vireo/internal/agent/migration/peer"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Peer sends requests to the agents of other nodes.
type Peer interface {
	migration.Peer
	// Release releases a guest to the target's agent: the source's guest will never run again. It returns how long the
	// target's guest has run.
	Release(ctx context.Context, a peer.Attempt) (time.Duration, error)
}

// firstPause and maxPause bound the pause between two attempts to transfer the ownership of a guest.
const firstPause, maxPause = 50 * time.Millisecond, 5 * time.Second

// transferOwnership releases a migrated guest and records that the target owns it, until that has succeeded or the process ends. It runs
// beside the reconciliations: neither an API server that is down nor a launcher that has ended delays it.
func (r *Reconciler) transferOwnership(ctx context.Context, vmi *v1.VirtualMachineInstance) {
	logger := log.FromContext(ctx)
	uid, pauses := vmi.Status.MigrationState.MigrationUID, limits.ExponentialBackoff(firstPause, maxPause)
	// The VMI has changed since the transfer started: at least the target has reported that it detects the guest.
	cached := &v1.VirtualMachineInstance{}
	if err := r.Client.Get(ctx, peer.AttemptOf(vmi).VMI, cached); err == nil && cached.UID == vmi.UID &&
		cached.Status.MigrationState != nil && cached.Status.MigrationState.MigrationUID == uid {
		vmi = cached
	}
	for {
		now, err := r.recordOwnership(ctx, vmi)
		if err == nil {
			logger.Info("The guest runs on the migration's target", "node", vmi.Status.MigrationState.TargetNode)
			return
		}
		pause := pauses.Step()
		logger.Info("The guest is migrated, and its ownership is not transferred yet", "error", err.Error(), "retryIn", pause.String())
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		// Another migration may have started since.
		if vmi = now; vmi.Status.MigrationState == nil || vmi.Status.MigrationState.MigrationUID != uid {
			return
		}
	}
}

// recordOwnership releases the guest to the target's agent and records the target as the owner, both at once: either lets the guest run. It
// fails as long as the owner is not recorded, and returns the VMI as it was read or written last.
func (r *Reconciler) recordOwnership(ctx context.Context, vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstance, error) {
	record, _ := vmistatus.MigrationRecord(&vmi.Status)
	actions := protocol.DecideSource(protocol.SourceView{Record: record, Domain: protocol.SourceMigrated})
	var release errgroup.Group
	var recorded error
	for _, action := range actions {
		switch action {
		case protocol.Release:
			m := peer.AttemptOf(vmi)
			release.Go(func() error {
				runs, err := r.Peer.Release(ctx, m)
				if err == nil {
					r.transfers.SetTargetRunning(m.UID, runs)
				}
				return err
			})
		case protocol.TransferOwnership:
			bounded, cancel := context.WithTimeout(ctx, writeTimeout)
			after := vmi.DeepCopy()
			if recorded = vmistatus.TransferOwnership(bounded, r.Client, after); recorded == nil {
				vmi = after
			}
			cancel()
		}
	}
	err := release.Wait()
	if recorded == nil {
		// The target's agent lets the guest run by the status, even if the release failed.
		return vmi, nil
	}
	now, readErr := r.readNow(ctx, peer.AttemptOf(vmi).VMI, vmi.UID)
	switch {
	case apierrors.IsNotFound(readErr):
		return vmi, nil
	case readErr == nil:
		vmi = now
		if record, ok := vmistatus.MigrationRecord(&vmi.Status); !ok || record.Owner == protocol.Target || record.Failed || record.Final {
			return vmi, nil
		}
	}
	return vmi, errors.Join(err, recorded, readErr)
}
