// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinebackup

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	backupapi "github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/backup/plan"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Indexes of the backups that have something left to do.
const (
	// sourceIndex is by the kind and the name of the source.
	sourceIndex = "unfinished-of-source"
	// claimIndex is by the name of the claim.
	claimIndex = "unfinished-of-claim"
	// trackerIndex is of trackers, by the name of the VM.
	trackerIndex = "trackers-of-virtualmachine"
	// UIDIndex is by the UID.
	UIDIndex = "unfinished-with-uid"
)

// GuestIndex is of VMIs, by the UIDs of the backups that have something in them.
const GuestIndex = "guests-of-backup"

func indexBackups(indexer client.FieldIndexer) error {
	return kit.AddIndexes(
		indexer,
		kit.IndexBy(&v1alpha1.VirtualMachineBackup{}, sourceIndex, func(b *v1alpha1.VirtualMachineBackup) []string {
			return ifUnfinished(b, sourceKey(b.Spec.Source.Kind, b.Spec.Source.Name))
		}),
		kit.IndexBy(&v1alpha1.VirtualMachineBackup{}, claimIndex, func(b *v1alpha1.VirtualMachineBackup) []string {
			return ifUnfinished(b, ptr.Deref(b.Spec.PvcName, ""))
		}),
		kit.IndexBy(&v1alpha1.VirtualMachineBackupTracker{}, trackerIndex,
			func(t *v1alpha1.VirtualMachineBackupTracker) []string {
				return []string{t.Spec.Source.Name}
			}),
		kit.IndexBy(&v1alpha1.VirtualMachineBackup{}, UIDIndex, UnfinishedUID),
		kit.IndexBy(&v1.VirtualMachineInstance{}, GuestIndex, plan.UIDs),
	)
}

// UnfinishedUID returns the UID of a backup that has something left to do.
func UnfinishedUID(b *v1alpha1.VirtualMachineBackup) []string { return ifUnfinished(b, string(b.UID)) }

func ifUnfinished(b *v1alpha1.VirtualMachineBackup, value string) []string {
	if !isUnfinished(b) {
		return nil
	}
	return []string{value}
}

func sourceKey(kind, name string) string { return kind + "/" + name }

func (r *Reconciler) find(ctx context.Context, namespace, index, value string) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1alpha1.VirtualMachineBackupList{}, client.InNamespace(namespace),
		client.MatchingFields{index: value})
}

// ofTracker returns the unfinished backups of a tracker.
func (r *Reconciler) ofTracker(ctx context.Context, tracker client.Object) []ctrl.Request {
	return r.find(ctx, tracker.GetNamespace(), sourceIndex, sourceKey(kindTracker, tracker.GetName()))
}

// ofVM returns the unfinished backups of a VM, also those by its trackers.
func (r *Reconciler) ofVM(ctx context.Context, namespace, name string) []ctrl.Request {
	requests := r.find(ctx, namespace, sourceIndex, sourceKey(kindVM, name))
	for _, tracker := range kit.Requests(ctx, r.Client, &v1alpha1.VirtualMachineBackupTrackerList{},
		client.InNamespace(namespace),
		client.MatchingFields{trackerIndex: name}) {
		requests = append(requests, r.find(ctx, namespace, sourceIndex, sourceKey(kindTracker, tracker.Name))...)
	}
	return requests
}

// ofSource returns the unfinished backups of a VM.
func (r *Reconciler) ofSource(ctx context.Context, vm client.Object) []ctrl.Request {
	return r.ofVM(ctx, vm.GetNamespace(), vm.GetName())
}

// ofGuest returns the unfinished backups of the VM of a VMI, and those that have something in the VMI although their
// tracker is gone.
func (r *Reconciler) ofGuest(ctx context.Context, object client.Object) []ctrl.Request {
	requests := r.ofVM(ctx, object.GetNamespace(), object.GetName())
	if vmi, ok := object.(*v1.VirtualMachineInstance); ok {
		for _, uid := range plan.UIDs(vmi) {
			requests = append(requests, r.find(ctx, vmi.Namespace, UIDIndex, uid)...)
		}
	}
	return requests
}

func (r *Reconciler) ofMigration(ctx context.Context, object client.Object) []ctrl.Request {
	m, ok := object.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return r.ofVM(ctx, m.Namespace, m.Spec.VMIName)
}

func (r *Reconciler) ofClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	return r.find(ctx, claim.GetNamespace(), claimIndex, claim.GetName())
}

// ofExport returns the backup that an export belongs to.
func ofExport(_ context.Context, export client.Object) []ctrl.Request {
	owner := metav1.GetControllerOf(export)
	if owner == nil || owner.Kind != kindBackup || owner.APIVersion != v1alpha1.GroupVersion.String() {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: export.GetNamespace(), Name: owner.Name}}}
}

// ofExporter returns the backup that an exporter's Pod may belong to: it has the name of the export.
func ofExporter(_ context.Context, pod *corev1.Pod) []ctrl.Request {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}}}
}

// backupChanged passes the updates of a VMI on which a backup depends. Agents update many other fields.
var backupChanged = kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
	return !equality.Semantic.DeepEqual(relevant(before), relevant(after))
})

// relevant returns the parts of a VMI on which a backup depends.
func relevant(vmi *v1.VirtualMachineInstance) []any {
	s := &vmi.Status
	// Their messages are in those of the backup.
	silent, failing := said(s, v1.VirtualMachineInstanceNodeUnresponsive), said(s, v1.VirtualMachineInstanceSynchronized)
	return []any{
		vmi.OwnerReferences, vmi.DeletionTimestamp, vmi.Spec.UtilityVolumes, vmi.Spec.Volumes, s.Phase, s.DiskBackup,
		s.DiskBackupRecord, silent, failing, s.SnapshotFreeze, s.SnapshotFreezeRecord, s.VolumeStatus, s.MigrationState,
	}
}

// said returns the status and the message of a condition, or nothing.
func said(status *v1.VirtualMachineInstanceStatus, kind v1.VirtualMachineInstanceConditionType) []string {
	c := vmistatus.FindCondition(status, kind)
	if c == nil {
		return nil
	}
	return []string{string(c.Status), c.Message}
}

// isPending reports whether a migration is to happen, or does.
func isPending(m *v1.VirtualMachineInstanceMigration) bool {
	return !m.IsFinal() && m.DeletionTimestamp == nil
}

// isUrgent reports whether such a migration does not wait for backups, as in KubeVirt.
func isUrgent(m *v1.VirtualMachineInstanceMigration) bool {
	return isPending(m) && ptr.Deref(m.Spec.Priority, "") == v1.PrioritySystemCritical
}

// migrationMatters passes migrations that have ended or are gone: a backup may begin; and new ones that end a backup.
var migrationMatters = predicate.Funcs{
	CreateFunc: func(e event.CreateEvent) bool {
		m, ok := e.Object.(*v1.VirtualMachineInstanceMigration)
		return ok && isUrgent(m)
	},
	UpdateFunc: kit.Updates(func(before, after *v1.VirtualMachineInstanceMigration) bool {
		return before.IsFinal() != after.IsFinal()
	}).UpdateFunc,
}

// claimComesOrGoes passes claims that are new, are being deleted, are gone or were replaced. Other updates change
// nothing for a backup.
var claimComesOrGoes = kit.Updates(func(before, after client.Object) bool {
	return before.GetUID() != after.GetUID() ||
		(before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil)
})

// vmComesOrGoes passes VMs that are new or gone.
var vmComesOrGoes = kit.Updates(func(before, after client.Object) bool { return before.GetUID() != after.GetUID() })

// Kinds of the sources of a backup.
const (
	kindVM      = "VirtualMachine"
	kindTracker = "VirtualMachineBackupTracker"
	// kindBackup is that of a backup itself.
	kindBackup = "VirtualMachineBackup"
)

// isUnfinished reports whether a backup has something left to do, of which the last is to remove what it has in the
// VMI. It has nothing left if another client has removed the finalizer of one that had ended, or was being deleted.
func isUnfinished(b *v1alpha1.VirtualMachineBackup) bool {
	return hasFinalizer(b) || b.DeletionTimestamp == nil && !plan.Ended(b)
}

// hasFinalizer reports whether something of a backup may be left in the VMI.
func hasFinalizer(b *v1alpha1.VirtualMachineBackup) bool {
	return controllerutil.ContainsFinalizer(b, backupapi.VirtualMachineBackupFinalizer)
}
