// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/handover"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// leave does the source's part of a migration.
func (r *Reconciler) leave(ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance) error {
	if vmistatus.HasEnded(vmi.Status.MigrationState) && s.domain != nil && s.domain.State == hypervisor.StateRunning {
		// It failed, and the guest is where it was.
		return nil
	}
	view, begun, err := r.sourceView(ctx, s, vmi)
	if err != nil {
		return err
	}
	if view.Dead || (view.Domain == migration.SourceHandedOver && view.Copying) {
		// The process that copied it is this one, and is at it.
		return &Wait{Reason: "the guest's new owner"}
	}
	for _, action := range migration.DecideSource(view) {
		if err := r.leaveBy(ctx, s, action, begun); err != nil {
			return err
		}
	}
	if view.Orphaned {
		s.again = orphanInterval
	}
	return nil
}

// sourceView is what the source's agent sees.
func (r *Reconciler) sourceView(
	ctx context.Context, s *scope, vmi *v1.VirtualMachineInstance,
) (migration.SourceView, *handover.Copy, error) {
	state, err := s.machine.Source(ctx, s.domainName())
	if err != nil {
		return migration.SourceView{}, nil, fromMachine(err)
	}
	m := vmi.Status.MigrationState
	record, _ := vmistatus.MigrationRecord(&vmi.Status)
	begun, view := r.copyView(m.MigrationUID, record, state)
	view.Prepared = m.TargetNodeAddress != "" && len(m.TargetDirectMigrationNodePorts) > 0
	return view, begun, nil
}

// copyView is what libvirt says of a guest, and what this process knows of its copy if it has begun it.
func (r *Reconciler) copyView(
	uid types.UID, record migration.Record, state hypervisor.SourceState,
) (*handover.Copy, migration.SourceView) {
	view := migration.SourceView{Record: record, Domain: state.Domain}
	begun := r.copies.Find(uid)
	if begun != nil {
		known := begun.State()
		view.Copying, view.Dead = known.Running, known.HandedOver
	}
	view.Orphaned = state.Job && !view.Copying
	return begun, view
}

func (r *Reconciler) leaveBy(ctx context.Context, s *scope, action migration.Action, begun *handover.Copy) error {
	switch action {
	case migration.Begin:
		now := r.stamp()
		return r.writeMigration(ctx, s, vmistatus.MigrationSource, func(m *v1.VirtualMachineInstanceMigrationState) {
			m.StartTimestamp, m.Mode = &now, v1.MigrationPreCopy
		})
	case migration.Copy:
		s.event(corev1.EventTypeNormal, v1.Migrating.String(), "VirtualMachineInstance is migrating.")
		r.copies.Forget(s.memory.leaving)
		s.memory.leaving = s.before.Status.MigrationState.MigrationUID
		r.copies.Begin(s.before, hypervisor.PodRef{UID: s.pod.UID, VMI: s.key}, podspec.ImageDigests(s.pod), s.machine)
		return nil
	case migration.Cancel:
		return r.cancelCopy(ctx, s, begun)
	case migration.Resume:
		return r.resumeSource(ctx, s)
	case migration.GiveUp:
		return r.giveUp(ctx, s, begun)
	case migration.Release:
		// With Yield.
		return nil
	case migration.Yield:
		if _, err := r.surrender(ctx, s.before); err != nil {
			return fmt.Errorf("tell that the guest was handed over: %w", err)
		}
		return &Wait{Reason: "the guest's new owner"}
	case migration.Destroy:
		return fromMachine(s.machine.Destroy(ctx, s.domainName()))
	default:
		return fmt.Errorf("no action of a migration's source: %d", action)
	}
}

// aborted is the failure of a migration that somebody asked to end. KubeVirt's words (virtwrap, asyncMigrationAbort).
const aborted = "Live migration aborted"

func (r *Reconciler) cancelCopy(ctx context.Context, s *scope, begun *handover.Copy) error {
	if begun == nil {
		return fromMachine(s.machine.CancelCopy(ctx, s.domainName()))
	}
	if err := begun.Cancel(ctx, aborted); err != nil {
		return fromMachine(err)
	}
	known := s.before.Status.MigrationState.AbortStatus == v1.MigrationAbortInProgress
	err := r.writeMigration(ctx, s, vmistatus.MigrationSource, func(m *v1.VirtualMachineInstanceMigrationState) {
		m.AbortStatus = v1.MigrationAbortInProgress
	})
	if err == nil && !known {
		s.event(corev1.EventTypeNormal, v1.Migrating.String(), "VirtualMachineInstance is aborting migration.")
	}
	return err
}

// resumeSource lets the guest go on, if what the API server says this moment and what libvirt says after that agree.
func (r *Reconciler) resumeSource(ctx context.Context, s *scope) error {
	now, err := r.readNow(ctx, s.key, s.before.UID)
	if err != nil {
		return fmt.Errorf("look whether the guest may go on: %w", err)
	}
	view, _, err := r.sourceView(ctx, s, now)
	if err != nil {
		return err
	}
	if !has(migration.DecideSource(view), migration.Resume) {
		return &Wait{Reason: "the status of the VMI to arrive"}
	}
	if err := s.machine.ResumeSource(ctx, s.domainName()); err != nil {
		return fromMachine(err)
	}
	return r.look(ctx, s)
}

func has(actions []migration.Action, wanted migration.Action) bool {
	for _, action := range actions {
		if action == wanted {
			return true
		}
	}
	return false
}

// giveUp records that the guest stays.
func (r *Reconciler) giveUp(ctx context.Context, s *scope, begun *handover.Copy) error {
	now := r.stamp()
	why := r.whyNot(s, begun)
	uid := s.before.Status.MigrationState.MigrationUID
	if begun == nil && s.before.Status.MigrationState.StartTimestamp != nil {
		// The process that put them there is gone. First: nobody looks after a migration that has failed.
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
	// KubeVirt's words.
	s.event(corev1.EventTypeWarning, v1.Migrated.String(), fmt.Sprintf("VirtualMachineInstance migration uid %s failed. reason:%s", uid, why))
	r.copies.Forget(uid)
	return r.look(ctx, s)
}

// whyNot says why the guest stays.
func (r *Reconciler) whyNot(s *scope, begun *handover.Copy) string {
	var err error
	if begun != nil {
		err = begun.State().Err
	}
	var canceled *handover.CanceledError
	switch {
	case s.before.Status.MigrationState.StartTimestamp == nil:
		return aborted
	case errors.As(err, &canceled):
		return canceled.Reason
	case err != nil:
		return "Live migration failed: " + hypervisor.CleanLine(err.Error(), maxMessage)
	default:
		return fmt.Sprintf("virt-handler on node %s was replaced while the guest was copied", r.Node)
	}
}

// declareMode writes how a guest is going to be copied.
func (r *Reconciler) declareMode(ctx context.Context, vmi *v1.VirtualMachineInstance, mode v1.MigrationMode) error {
	before, err := r.readNow(ctx, handover.Of(vmi).VMI, vmi.UID)
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
