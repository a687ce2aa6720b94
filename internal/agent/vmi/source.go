// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/migrate"
	"github.com/vireo-project/vireo/internal/agent/migrate/peer"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// sent is the last migration from this Pod.
type sent struct {
	// migration is its UID.
	migration types.UID
}

// forget forgets the transfer of the migration.
func (m *sent) forget(r *Reconciler) { r.transfers.Forget(m.migration) }

// migrateSource carries out what package protocol decides for the source of a migration.
func (r *Reconciler) migrateSource(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) error {
	if vmistatus.HasEnded(vmi.Status.MigrationState) && s.Domain != nil && s.Domain.State == hypervisor.StateRunning {
		// It failed, and the guest runs here.
		return nil
	}
	view, transfer, err := r.sourceView(ctx, s, vmi)
	if err != nil {
		return err
	}
	if view.QEMUExited || (view.Domain == protocol.SourceMigrated && view.Transferring) {
		// transferOwnership runs already.
		return &outcome.Wait{Reason: "the guest's new owner"}
	}
	// A suspended guest without a transfer of this process waits until libvirt has dropped the job of an earlier
	// process, or until it can lock its images again.
	s.undecided = view.Domain == protocol.SourceSuspended && !view.Transferring
	for _, action := range protocol.DecideSource(view) {
		if err := r.doSource(ctx, s, action, transfer); err != nil {
			return err
		}
	}
	if view.Orphaned {
		s.RequeueAfter(orphanInterval)
	}
	return nil
}

// sourceView returns what the source's agent observes, and the transfer if this process has started it.
func (r *Reconciler) sourceView(
	ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance,
) (protocol.SourceView, *migrate.Transfer, error) {
	state, err := s.connection.SourceState(ctx, s.DomainName())
	if err != nil {
		return protocol.SourceView{}, nil, phase.FromConnection(err)
	}
	m := vmi.Status.MigrationState
	record, _ := vmistatus.MigrationRecord(&vmi.Status)
	transfer, view := r.transferView(m.MigrationUID, record, state)
	view.TargetPrepared = m.TargetNodeAddress != "" && len(m.TargetDirectMigrationNodePorts) > 0
	return view, transfer, nil
}

// transferView returns what libvirt reports, and the transfer if this process has started it.
func (r *Reconciler) transferView(
	uid types.UID, record protocol.Record, state hypervisor.SourceState,
) (*migrate.Transfer, protocol.SourceView) {
	view := protocol.SourceView{Record: record, Domain: state.Domain}
	transfer := r.transfers.Find(uid)
	if transfer != nil {
		known := transfer.State()
		view.Transferring, view.QEMUExited = known.Running, known.Migrated
	}
	view.Orphaned = state.Job && !view.Transferring
	return transfer, view
}

func (r *Reconciler) doSource(ctx context.Context, s *scope, action protocol.Action, transfer *migrate.Transfer) error {
	switch action {
	case protocol.Start:
		now := r.stamp()
		return r.writeMigration(ctx, s, vmistatus.MigrationSource, func(m *v1.VirtualMachineInstanceMigrationState) {
			m.StartTimestamp, m.Mode = &now, v1.MigrationPreCopy
		})
	case protocol.Transfer:
		s.Event(corev1.EventTypeNormal, v1.Migrating.String(), "VirtualMachineInstance is migrating.")
		r.transfers.Forget(s.cache.sent.migration)
		s.cache.sent.migration = s.Before.Status.MigrationState.MigrationUID
		r.transfers.StartTransfer(s.Before, hypervisor.PodRef{UID: s.Pod.UID, VMI: s.Key}, podspec.ImageDigests(s.Pod),
			s.connection)
		return nil
	case protocol.Cancel:
		return r.cancelTransfer(ctx, s, transfer)
	case protocol.Resume:
		return r.resumeSource(ctx, s)
	case protocol.RecordFailure:
		return r.recordFailure(ctx, s, transfer)
	case protocol.Release:
		// TransferOwnership, which always comes with it, does both.
		return nil
	case protocol.TransferOwnership:
		if _, err := r.recordOwnership(ctx, s.Before); err != nil {
			return fmt.Errorf("transfer ownership of the guest: %w", err)
		}
		return &outcome.Wait{Reason: "the guest's new owner"}
	case protocol.Destroy:
		return phase.FromConnection(s.connection.Destroy(ctx, s.DomainName()))
	default:
		return fmt.Errorf("no action of a migration's source: %d", action)
	}
}

// aborted is the failure of a migration that was aborted on request. KubeVirt's text (virtwrap, asyncMigrationAbort).
const aborted = "Live migration aborted"

func (r *Reconciler) cancelTransfer(ctx context.Context, s *scope, transfer *migrate.Transfer) error {
	if transfer == nil {
		return phase.FromConnection(s.connection.CancelTransfer(ctx, s.DomainName()))
	}
	if err := transfer.Cancel(ctx, aborted); err != nil {
		return phase.FromConnection(err)
	}
	known := s.Before.Status.MigrationState.AbortStatus == v1.MigrationAbortInProgress
	err := r.writeMigration(ctx, s, vmistatus.MigrationSource, func(m *v1.VirtualMachineInstanceMigrationState) {
		m.AbortStatus = v1.MigrationAbortInProgress
	})
	if err == nil && !known {
		s.Event(corev1.EventTypeNormal, v1.Migrating.String(), "VirtualMachineInstance is aborting migration.")
	}
	return err
}

// resumeSource resumes the guest, if package protocol still decides so on a record just read from the API server and on
// libvirt's state after that.
func (r *Reconciler) resumeSource(ctx context.Context, s *scope) error {
	now, err := r.readNow(ctx, s.Key, s.Before.UID)
	if err != nil {
		return fmt.Errorf("read whether the guest may be resumed: %w", err)
	}
	view, _, err := r.sourceView(ctx, s, now)
	if err != nil {
		return err
	}
	if !slices.Contains(protocol.DecideSource(view), protocol.Resume) {
		return &outcome.Wait{Reason: "the current status of the VMI"}
	}
	if err := s.connection.ResumeSource(ctx, s.DomainName()); err != nil {
		return phase.FromConnection(err)
	}
	s.undecided = false
	return s.ReadDomain(ctx, s.connection)
}

// recordFailure records that the source keeps the guest.
func (r *Reconciler) recordFailure(ctx context.Context, s *scope, transfer *migrate.Transfer) error {
	now := r.stamp()
	why := r.failureReason(s, transfer)
	uid := s.Before.Status.MigrationState.MigrationUID
	if transfer == nil && s.Before.Status.MigrationState.StartTimestamp != nil {
		// The process that wrote them is gone. First: a migration that has failed is not reconciled any more.
		r.removeCertificates(ctx, s)
	}
	err := r.writeMigration(ctx, s, vmistatus.MigrationSource, func(m *v1.VirtualMachineInstanceMigrationState) {
		m.Failed, m.Completed, m.EndTimestamp, m.FailureReason = true, true, &now, why
		if m.AbortRequested {
			m.AbortStatus = v1.MigrationAbortSucceeded
		}
	})
	if err != nil {
		return err
	}
	// KubeVirt's text.
	s.Event(corev1.EventTypeWarning, v1.Migrated.String(),
		fmt.Sprintf("VirtualMachineInstance migration uid %s failed. reason:%s", uid, why))
	r.transfers.Forget(uid)
	return s.ReadDomain(ctx, s.connection)
}

// failureReason returns why the source keeps the guest.
func (r *Reconciler) failureReason(s *scope, transfer *migrate.Transfer) string {
	var err error
	if transfer != nil {
		err = transfer.State().Err
	}
	var canceled *migrate.CanceledError
	switch {
	case s.Before.Status.MigrationState.StartTimestamp == nil:
		return aborted
	case errors.As(err, &canceled):
		return canceled.Reason
	case err != nil:
		return "Live migration failed: " + hypervisor.CleanLine(err.Error(), phase.MaxMessage)
	default:
		return fmt.Sprintf("virt-handler on node %s was replaced while the guest was copied", r.Node)
	}
}

// recordMode writes the mode of a migration to the VMI's status.
func (r *Reconciler) recordMode(ctx context.Context, vmi *v1.VirtualMachineInstance, mode v1.MigrationMode) error {
	before, err := r.readNow(ctx, peer.AttemptOf(vmi).VMI, vmi.UID)
	if err != nil {
		return err
	}
	m := before.Status.MigrationState
	if m == nil || m.MigrationUID != vmi.Status.MigrationState.MigrationUID || vmistatus.HasEnded(m) {
		return vmistatus.ErrNotMigrating
	}
	after := before.DeepCopy()
	after.Status.MigrationState.Mode = mode
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err = vmistatus.Patch(ctx, r.Client, vmistatus.MigrationSource, before, after)
	return err
}
