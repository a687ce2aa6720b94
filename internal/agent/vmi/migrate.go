// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/migrate"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

const (
	// writeTimeout bounds requests to the API server during a migration: an unavailable API server must not delay calls
	// to libvirt.
	writeTimeout = 5 * time.Second
	// orphanInterval is the pause between two reads of a job that an earlier process started.
	orphanInterval = time.Second
)

// migrating returns the VMI in whose migration the Pod takes part, as it was last read or written, and the Pod's side
// of it. The VMI is nil if there is no such migration.
func (s *scope) migrating(node string) (*v1.VirtualMachineInstance, protocol.Side) {
	if s.Incoming != nil {
		return s.Incoming, protocol.Target
	}
	if s.Before == nil {
		return nil, protocol.Source
	}
	m := s.Before.Status.MigrationState
	switch {
	case m == nil || m.TargetNode == "":
		return nil, protocol.Source
	case m.SourceNode == node && s.Before.Status.NodeName == node && (m.SourcePod == "" || m.SourcePod == s.Pod.Name):
		return s.Before, protocol.Source
	case isTarget(s.Before, node, s.Pod.Name):
		return s.Before, protocol.Target
	default:
		return nil, protocol.Source
	}
}

// isTarget reports whether a Pod is the target of a VMI's migration.
func isTarget(vmi *v1.VirtualMachineInstance, node, pod string) bool {
	m := vmi.Status.MigrationState
	return m != nil && m.TargetNode == node && m.TargetPod == pod
}

// migrate carries out what this node's agent has to do next in a migration.
func (r *Reconciler) migrate(ctx context.Context, s *scope) error {
	vmi, side := s.migrating(r.Node)
	var err error
	switch {
	case vmi == nil:
		return r.stopUnowned(ctx, s)
	case side == protocol.Source:
		err = r.migrateSource(ctx, s, vmi)
	default:
		err = r.migrateTarget(ctx, s, vmi)
	}
	if err != nil {
		// The VMI may have changed since it was read, so its status is not written from it.
		s.Assigned = false
	}
	return err
}

// writeMigration changes the fields of status.migrationState that a side owns.
func (r *Reconciler) writeMigration(
	ctx context.Context, s *scope, w vmistatus.Writer, change func(*v1.VirtualMachineInstanceMigrationState),
) error {
	before, _ := s.migrating(r.Node)
	after := before.DeepCopy()
	change(after.Status.MigrationState)
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if _, err := vmistatus.Patch(ctx, r.Client, w, before, after); err != nil {
		return err
	}
	if s.Incoming != nil {
		s.Incoming = after
		return nil
	}
	s.Before = after
	s.VMI.ResourceVersion, s.VMI.Status.MigrationState = after.ResourceVersion, after.Status.MigrationState.DeepCopy()
	return nil
}

// readNow reads the VMI of a Pod from the API server, not from a cache.
func (r *Reconciler) readNow(
	ctx context.Context, key types.NamespacedName, uid types.UID,
) (*v1.VirtualMachineInstance, error) {
	vmi := &v1.VirtualMachineInstance{}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := r.APIReader.Get(ctx, key, vmi); err != nil {
		return nil, err
	}
	if vmi.UID != uid {
		gone := apierrors.NewNotFound(v1.GroupVersion.WithResource("virtualmachineinstances").GroupResource(), key.Name)
		return nil, fmt.Errorf("%w: %w", errReplaced, gone)
	}
	return vmi, nil
}

// errReplaced means that a VMI is gone and another one has its name.
var errReplaced = errors.New("the VMI was replaced")

// stopUnowned destroys a guest that must not run on this node any more. Its VMI is not in this agent's cache: it is not
// assigned yet, was deleted, or belongs to another node. If another VMI has its name now, the guest gets no grace
// period: the guest of that VMI may already use the same disks.
func (r *Reconciler) stopUnowned(ctx context.Context, s *scope) error {
	if s.VMI != nil || !s.Domain.Active() {
		return nil
	}
	vmi, err := r.readNow(ctx, s.Key, ownerVMI(s.Pod).UID)
	switch {
	case errors.Is(err, errReplaced):
		log.FromContext(ctx).Info("Destroying a guest whose VMI was replaced", "pod", s.Pod.Name)
		if err := s.connection.Destroy(ctx, s.DomainName()); err != nil {
			return phase.FromConnection(err)
		}
		return &outcome.Wait{Reason: "the end of the launcher Pod, whose VMI was replaced"}
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read the owner of the guest: %w", err)
	}
	record, ok := vmistatus.MigrationRecord(&vmi.Status)
	if m := vmi.Status.MigrationState; !ok || m.SourceNode != r.Node || m.SourcePod != s.Pod.Name {
		return nil
	}
	state, err := s.connection.SourceState(ctx, s.DomainName())
	if err != nil {
		return phase.FromConnection(err)
	}
	if state.Domain == protocol.SourcePostCopy {
		// The target's guest runs already and fetches its memory from here.
		return &outcome.Requeue{After: orphanInterval}
	}
	_, view := r.transferView(vmi.Status.MigrationState.MigrationUID, record, state)
	if view.Transferring || view.Orphaned {
		// libvirt will soon end the source's guest as migrated.
		return &outcome.Requeue{After: orphanInterval}
	}
	if slices.Contains(protocol.DecideSource(view), protocol.Destroy) {
		if err := s.connection.Destroy(ctx, s.DomainName()); err != nil {
			return phase.FromConnection(err)
		}
	}
	return &outcome.Wait{Reason: "the end of the launcher Pod, whose guest has migrated"}
}

// isMigrated reports whether this process has recorded that the guest is migrated. What the launcher reports afterwards
// is ignored.
func (r *Reconciler) isMigrated(s *scope) bool {
	vmi, side := s.migrating(r.Node)
	if vmi == nil || side != protocol.Source {
		return false
	}
	transfer := r.transfers.Find(vmi.Status.MigrationState.MigrationUID)
	return transfer != nil && transfer.State().Migrated
}

// Peer sends requests to the agents of other nodes.
type Peer interface {
	migrate.Peer
	// Release releases a guest to the target's agent: the source's guest will never run again. It returns how long the
	// target's guest has run.
	Release(ctx context.Context, a peer.Attempt) (time.Duration, error)
}

// firstPause and maxPause bound the pause between two attempts to transfer the ownership of a guest.
const firstPause, maxPause = 50 * time.Millisecond, 5 * time.Second

// transferOwnership releases a migrated guest and records that the target owns it, until that has succeeded or the
// process ends. It runs beside the reconciliations: neither an API server that is down nor a launcher that has ended
// delays it.
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
		logger.Info("The guest is migrated, and its ownership is not transferred yet", "error", err.Error(), "retryIn",
			pause.String())
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

// recordOwnership releases the guest to the target's agent and records the target as the owner, both at once: either
// lets the guest run. It fails as long as the owner is not recorded, and returns the VMI as it was read or written
// last.
func (r *Reconciler) recordOwnership(
	ctx context.Context, vmi *v1.VirtualMachineInstance,
) (*v1.VirtualMachineInstance, error) {
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
		if record, ok := vmistatus.MigrationRecord(&vmi.Status); !ok || record.Owner == protocol.Target || record.Failed ||
			record.Final {
			return vmi, nil
		}
	}
	return vmi, errors.Join(err, recorded, readErr)
}
