// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"context"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/datavolume"
	"github.com/vireo-project/vireo/internal/controller/reconciler"
	"github.com/vireo-project/vireo/internal/snapshot/capture"
	"github.com/vireo-project/vireo/internal/snapshot/restore"
)

// Indexes of the restores that have not finished, which are few: by the name of their target, by everything else that they wait for, and by
// the value underway, which all of them have.
const (
	targetField             = "target"
	awaitedField            = "awaited"
	underwayField, underway = "underway", "true"
)

// Kinds of what a restore waits for, in the values of awaitedIndex. A DataVolume has the name of its claim.
const awaitedSnapshot, awaitedClaim, awaitedState, awaitedObsolete = "snapshot/", "claim/", "state/", "obsolete/"

var (
	targetIndex   = indexUnderway(targetField, func(of *v1beta1.VirtualMachineRestore) []string { return []string{of.Spec.Target.Name} })
	awaitedIndex  = indexUnderway(awaitedField, awaited)
	underwayIndex = indexUnderway(underwayField, func(*v1beta1.VirtualMachineRestore) []string { return []string{underway} })
)

// indexUnderway is an index of the restores that have not finished.
func indexUnderway(field string, values func(*v1beta1.VirtualMachineRestore) []string) reconciler.Index {
	return reconciler.IndexBy(&v1beta1.VirtualMachineRestore{}, field, func(of *v1beta1.VirtualMachineRestore) []string {
		if restore.Finished(of.Status) {
			return nil
		}
		return values(of)
	})
}

// awaited returns the values of awaitedIndex: the snapshot, the claims and DataVolumes in the status, and the claims with the labels of the
// target's persistent state.
func awaited(of *v1beta1.VirtualMachineRestore) []string {
	target := of.Spec.Target.Name
	values := []string{
		awaitedSnapshot + of.Spec.VirtualMachineSnapshotName, awaitedState + target, awaitedObsolete + capture.StateVolume(target),
	}
	if of.Status == nil {
		return values
	}
	for i := range of.Status.Restores {
		values = append(values, awaitedClaim+of.Status.Restores[i].PersistentVolumeClaimName)
	}
	for _, name := range of.Status.DeletedDataVolumes {
		values = append(values, awaitedClaim+name)
	}
	return values
}

// comesOrGoes passes the creation and the deletion of a VMI. A restore waits until its target has none.
var comesOrGoes = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}

// LockIndex finds the VMs that are locked for a restore, by its name.
const LockIndex = "status.restoreInProgress"

var lockIndex = reconciler.IndexBy(&v1.VirtualMachine{}, LockIndex, LockOf)

// LockOf returns the values of LockIndex.
func LockOf(vm *v1.VirtualMachine) []string {
	if vm.Status.RestoreInProgress == nil {
		return nil
	}
	return []string{*vm.Status.RestoreInProgress}
}

// ofVM returns the unfinished restores of a VM, and the one for which it is locked, even if that is gone.
func (r *Reconciler) ofVM(ctx context.Context, object client.Object) []ctrl.Request {
	requests := r.ofTarget(ctx, object)
	if vm, ok := object.(*v1.VirtualMachine); ok {
		for _, name := range LockOf(vm) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: vm.Namespace, Name: name}})
		}
	}
	return requests
}

// ofTarget returns the restores underway to the VM of an object's name.
func (r *Reconciler) ofTarget(ctx context.Context, object client.Object) []ctrl.Request {
	return r.by(ctx, object.GetNamespace(), targetField, object.GetName())
}

// ofClaim returns the restores underway that wait for a claim.
func (r *Reconciler) ofClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	values := []string{awaitedClaim + claim.GetName()}
	if vm, is := claim.GetLabels()[v1.PersistentStateLabel]; is {
		values = append(values, awaitedState+vm)
	}
	if state, is := claim.GetLabels()[snapshot.RestoreCleanupStateLabel]; is {
		values = append(values, awaitedObsolete+state)
	}
	found := make([][]ctrl.Request, len(values))
	for i, value := range values {
		found[i] = r.by(ctx, claim.GetNamespace(), awaitedField, value)
	}
	return slices.Concat(found...)
}

// ofSnapshot returns the restores underway of a snapshot, and ofContent those of the snapshot that a content names.
func (r *Reconciler) ofSnapshot(ctx context.Context, object client.Object) []ctrl.Request {
	return r.by(ctx, object.GetNamespace(), awaitedField, awaitedSnapshot+object.GetName())
}

func (r *Reconciler) ofContent(ctx context.Context, object client.Object) []ctrl.Request {
	content, ok := object.(*v1beta1.VirtualMachineSnapshotContent)
	if !ok || content.Spec.VirtualMachineSnapshotName == nil {
		return nil
	}
	return r.by(ctx, content.Namespace, awaitedField, awaitedSnapshot+*content.Spec.VirtualMachineSnapshotName)
}

// withDataVolume returns the restores underway that wait for a DataVolume, or all if the importer was installed or removed.
func (r *Reconciler) withDataVolume(ctx context.Context, change datavolume.Change) []ctrl.Request {
	if change.Name == "" {
		return r.by(ctx, "", underwayField, underway)
	}
	return r.by(ctx, change.Namespace, awaitedField, awaitedClaim+change.Name)
}

// by returns the restores of a namespace, or of all, with a value in an index.
func (r *Reconciler) by(ctx context.Context, namespace, field, value string) []ctrl.Request {
	return reconciler.Requests(ctx, r.Client, &v1beta1.VirtualMachineRestoreList{},
		client.InNamespace(namespace), client.MatchingFields{field: value})
}
