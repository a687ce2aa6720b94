// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupapi "github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/internal/exporter/content"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// actionBackup is the action of a backup's events.
const actionBackup = "Backup"

// scope is one reconciliation of one backup.
type scope struct {
	*Reconciler
	// now is the time of the reconciliation.
	now time.Time
	// backup is the backup as read. Writes refresh it.
	backup *v1alpha1.VirtualMachineBackup
	// vmi is the VM's VMI as read, or nil. Writes refresh it.
	vmi *v1.VirtualMachineInstance
	// tracker is the source of the backup as read, or nil.
	tracker *v1alpha1.VirtualMachineBackupTracker
	// export is the export of the backup as read, or nil.
	export *exportv1.VirtualMachineExport
	// requeueAfter is when to reconcile again even if nothing changes, or 0.
	requeueAfter time.Duration
}

// run reconciles the backup.
func (s *scope) run(ctx context.Context) error {
	if !isUnfinished(s.backup) {
		return nil
	}
	// 1. Before anything is written to the VMI.
	if err := kit.AddFinalizer(ctx, s.Client, &s.backup, backupapi.VirtualMachineBackupFinalizer); err != nil {
		return err
	}
	observed, err := s.observe(ctx)
	if err != nil {
		return err
	}
	step := plan.Next(observed)
	s.requeueAfter = step.After
	// 2. How the backup ended is stored before what proves it is removed from the VMI.
	if err := s.writeStatus(ctx, step.Status); err != nil {
		return err
	}
	if step.Pending != "" {
		s.Recorder.Eventf(s.backup, nil, corev1.EventTypeWarning, backupapi.BackupCleanUpPendingEvent, actionBackup, "%s",
			step.Pending)
	}
	if err := s.apply(ctx, step); err != nil || !step.Done {
		return err
	}
	// 3. Nothing is left in the VMI.
	return kit.RemoveFinalizer(ctx, s.Client, &s.backup, backupapi.VirtualMachineBackupFinalizer)
}

// observe reads what decides about the backup.
func (s *scope) observe(ctx context.Context) (plan.Observed, error) {
	o := plan.Observed{Now: s.now, Backup: s.backup}
	source := s.backup.Spec.Source
	var err error
	if source.Kind == kindTracker {
		// A stale one would have an earlier checkpoint.
		if o.Tracker, err = kit.Read(ctx, s.key(source.Name), &v1alpha1.VirtualMachineBackupTracker{},
			s.APIReader); err != nil {
			return o, err
		}
		s.tracker = o.Tracker
	}
	if o.Claim, err = kit.Read(ctx, s.key(ptr.Deref(s.backup.Spec.PvcName, "")), &corev1.PersistentVolumeClaim{},
		s.Client); err != nil {
		return o, err
	}
	if err = s.observeExport(ctx, &o); err != nil {
		return o, err
	}
	vm, err := s.findVM(ctx)
	if err != nil || vm == "" {
		return o, err
	}
	if o.NoVM, err = s.readVMI(ctx, vm); err != nil || s.vmi == nil {
		return o, err
	}
	o.VMI = s.vmi
	if o.Checkpoints, err = s.checkpoints(ctx, vm); err != nil {
		return o, err
	}
	err = kit.EachMigration(ctx, s.APIReader, client.ObjectKeyFromObject(s.vmi),
		func(m *v1.VirtualMachineInstanceMigration) {
			o.MigrationPending = o.MigrationPending || isPending(m)
			o.MigrationUrgent = o.MigrationUrgent || isUrgent(m)
		})
	return o, err
}

// observeExport reads the export of a backup that is pulled, and its Pod. The export is read from the API server: an
// earlier state of it may have another report of what was read.
func (s *scope) observeExport(ctx context.Context, o *plan.Observed) (err error) {
	if !plan.IsPull(s.backup) {
		return nil
	}
	if o.Export, err = kit.Read(ctx, s.key(s.backup.Name), &exportv1.VirtualMachineExport{}, s.APIReader); err != nil ||
		o.Export == nil {
		return err
	}
	pod, err := kit.Read(ctx, s.key(content.ServiceName(o.Export.Name)), &corev1.Pod{}, s.Pods)
	if err == nil && pod != nil && metav1.IsControlledBy(pod, o.Export) {
		o.ExportPod = pod
	}
	s.export = o.Export
	return err
}

// checkpoints returns the checkpoints of the VM's trackers that the guest may have, if the backup is one of a tracker
// that may start now. The agent deletes all others, so that a stale cache would cost another tracker its checkpoint.
func (s *scope) checkpoints(ctx context.Context, vm string) ([]string, error) {
	if s.tracker == nil || s.vmi.Status.DiskBackup != nil || plan.Ended(s.backup) {
		return nil, nil
	}
	cached := &v1alpha1.VirtualMachineBackupTrackerList{}
	if err := s.Client.List(ctx, cached, client.InNamespace(s.backup.Namespace),
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the trackers of VirtualMachine %s: %w", s.key(vm), err)
	}
	trackers, err := kit.Current(ctx, s.APIReader, v1alpha1.GroupVersion.WithKind("VirtualMachineBackupTracker"),
		s.backup.Namespace,
		cached.Items, all)
	if err != nil {
		return nil, err
	}
	return plan.Checkpoints(trackers, s.vmi), nil
}

// findVM returns the name of the VM whose VMI has something of the backup, otherwise that of the source, or nothing.
// They differ if the tracker is gone or was replaced. A cache may not have what was written last, so the tracker is
// read from the API server if it cannot be the one with which the backup began.
func (s *scope) findVM(ctx context.Context) (string, error) {
	vm := plan.SourceVM(s.backup, s.tracker)
	if s.backup.Spec.Source.Kind != kindTracker {
		return vm, nil
	}
	cached := &v1.VirtualMachineInstanceList{}
	err := s.Client.List(ctx, cached, client.InNamespace(s.backup.Namespace),
		client.MatchingFields{GuestIndex: string(s.backup.UID)})
	vmis := cached.Items
	if err == nil && len(vmis) == 0 &&
		(s.tracker == nil || s.tracker.CreationTimestamp.After(s.backup.CreationTimestamp.Time)) {
		vmis, err = s.currentVMIs(ctx)
	}
	if err != nil {
		return "", fmt.Errorf("list the VirtualMachineInstances of the namespace %s that may have the backup %s: %w",
			s.backup.Namespace, s.backup.Name, err)
	}
	for i := range vmis {
		if plan.Has(&vmis[i], s.backup) {
			return vmis[i].Name, nil
		}
	}
	return vm, nil
}

// currentVMIs returns the VMIs of the namespace as they are on the API server.
func (s *scope) currentVMIs(ctx context.Context) ([]v1.VirtualMachineInstance, error) {
	cached := &v1.VirtualMachineInstanceList{}
	if err := s.Client.List(ctx, cached, client.InNamespace(s.backup.Namespace),
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	return kit.Current(ctx, s.APIReader, v1.VirtualMachineInstanceGroupVersionKind, s.backup.Namespace, cached.Items, all)
}

// all selects every object of a list.
func all(metav1.Object) bool { return true }

// readVMI reads the VMI of the VM from the API server. A VMI that has ended, or that the VM does not control, is
// ignored, unless it has something of this backup. readVMI also reports whether there is no such VM.
func (s *scope) readVMI(ctx context.Context, name string) (noVM bool, err error) {
	vm, err := kit.Read(ctx, s.key(name), &v1.VirtualMachine{}, s.Client)
	if err != nil {
		return false, err
	}
	vmi, err := kit.Read(ctx, s.key(name), &v1.VirtualMachineInstance{}, s.APIReader)
	if err != nil || vmi == nil || vmi.IsFinal() {
		return vm == nil, err
	}
	if vm != nil && metav1.IsControlledBy(vmi, vm) || plan.Has(vmi, s.backup) {
		s.vmi = vmi
	}
	return vm == nil, nil
}

func (s *scope) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.backup.Namespace, Name: name}
}

// apply makes the change of a step.
func (s *scope) apply(ctx context.Context, step plan.Step) error {
	switch {
	case step.Export != nil:
		if err := s.Client.Create(ctx, step.Export); err != nil {
			return fmt.Errorf("create VirtualMachineExport %s: %w", client.ObjectKeyFromObject(step.Export), err)
		}
		return nil
	case step.DeleteExport:
		return kit.Delete(ctx, s.Client, s.export)
	case step.AddVolume != nil:
		return s.changeVolumes(ctx,
			func(volumes []v1.UtilityVolume) []v1.UtilityVolume { return append(volumes, *step.AddVolume) })
	case step.RemoveVolume != "":
		return s.changeVolumes(ctx, func(volumes []v1.UtilityVolume) []v1.UtilityVolume {
			return slices.DeleteFunc(volumes, func(v v1.UtilityVolume) bool { return v.Name == step.RemoveVolume })
		})
	case step.Freeze != nil:
		return s.changeStatus(ctx,
			func(status *v1.VirtualMachineInstanceStatus) { status.SnapshotFreeze = step.Freeze.Status() })
	case step.ClearFreeze:
		return s.changeStatus(ctx, func(status *v1.VirtualMachineInstanceStatus) { status.SnapshotFreeze = nil })
	case step.Intent != nil:
		return s.changeStatus(ctx, func(status *v1.VirtualMachineInstanceStatus) { status.DiskBackup = step.Intent.Status() })
	case step.Checkpoint != nil:
		return s.storeCheckpoint(ctx, step.Checkpoint)
	case step.ClearIntent:
		return s.changeStatus(ctx, func(status *v1.VirtualMachineInstanceStatus) { status.DiskBackup = nil })
	default:
		return nil
	}
}

// storeCheckpoint writes the checkpoint from which later backups of the tracker start, with the resource version that
// was read.
func (s *scope) storeCheckpoint(ctx context.Context, checkpoint *v1alpha1.BackupCheckpoint) error {
	return kit.WriteStatus(ctx, s.Client, &s.tracker, func(t *v1alpha1.VirtualMachineBackupTracker) {
		if t.Status == nil {
			t.Status = &v1alpha1.VirtualMachineBackupTrackerStatus{}
		}
		t.Status.LatestCheckpoint = checkpoint
	})
}

// changeVolumes changes the VMI's utility volumes, with the resource version that was read.
func (s *scope) changeVolumes(ctx context.Context, change func([]v1.UtilityVolume) []v1.UtilityVolume) error {
	changed, err := optimistic.Patch(ctx, s.Client, s.vmi, func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.UtilityVolumes = change(vmi.Spec.UtilityVolumes)
	})
	if err != nil {
		return fmt.Errorf("patch the utility volumes of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.vmi),
			err)
	}
	s.vmi = changed
	return nil
}

// changeStatus changes the VMI's status, with the resource version that was read.
func (s *scope) changeStatus(ctx context.Context, change func(*v1.VirtualMachineInstanceStatus)) error {
	changed := s.vmi.DeepCopy()
	change(&changed.Status)
	if _, err := vmistatus.Patch(ctx, s.Client, vmistatus.Controller, s.vmi, changed); err != nil {
		return err
	}
	s.vmi = changed
	return nil
}

// writeStatus writes the status if it has changed, and then records the event of the change.
func (s *scope) writeStatus(ctx context.Context, status v1alpha1.VirtualMachineBackupStatus) error {
	change := func(b *v1alpha1.VirtualMachineBackup) {
		if b.Status != nil || !equality.Semantic.DeepEqual(status, v1alpha1.VirtualMachineBackupStatus{}) {
			b.Status = &status
		}
	}
	return kit.WriteStatus(ctx, s.Client, &s.backup, change, func(before *v1alpha1.VirtualMachineBackup) {
		s.recordChange(ptr.Deref(before.Status, v1alpha1.VirtualMachineBackupStatus{}).Conditions, status.Conditions)
	})
}

// recordChange records an event if the backup has begun, has ended or is being aborted.
func (s *scope) recordChange(before, after []metav1.Condition) {
	progressing := meta.FindStatusCondition(after, string(v1alpha1.ConditionProgressing))
	was := meta.FindStatusCondition(before, string(v1alpha1.ConditionProgressing))
	if progressing == nil || was != nil && was.Reason == progressing.Reason {
		return
	}
	kind := corev1.EventTypeNormal
	var reason string
	switch progressing.Reason {
	case v1alpha1.ReasonInitiated:
		reason = backupapi.BackupInitiatedEvent
	case v1alpha1.ReasonAborting:
		reason = backupapi.BackupAbortingEvent
	case v1alpha1.ReasonCompleted:
		reason = backupapi.BackupCompletedEvent
	case v1alpha1.ReasonCompletedWithWarning:
		kind, reason = corev1.EventTypeWarning, backupapi.BackupCompletedWithWarningEvent
	case v1alpha1.ReasonFailed, v1alpha1.ReasonSourceLost:
		kind, reason = corev1.EventTypeWarning, backupapi.BackupFailedEvent
	default:
		return
	}
	s.Recorder.Eventf(s.backup, nil, kind, reason, actionBackup, "%s", progressing.Message)
}
