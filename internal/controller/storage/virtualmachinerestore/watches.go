// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"context"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/decide/restore"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Fields of the indexes of unfinished restores, which are few: by the name of their target, by everything else that
// they wait for, and by the value underway, which all of them have.
const (
	targetField             = "target"
	awaitedField            = "awaited"
	underwayField, underway = "underway", "true"
)

// Kinds of what a restore waits for, in the values of awaitedIndex. A DataVolume has the name of its claim.
const awaitedSnapshot, awaitedClaim, awaitedState, awaitedObsolete = "snapshot/", "claim/", "state/", "obsolete/"

var (
	targetIndex = indexUnderway(targetField,
		func(vmRestore *v1beta1.VirtualMachineRestore) []string { return []string{vmRestore.Spec.Target.Name} })
	awaitedIndex  = indexUnderway(awaitedField, awaited)
	underwayIndex = indexUnderway(underwayField,
		func(*v1beta1.VirtualMachineRestore) []string { return []string{underway} })
)

// indexUnderway is an index of the restores that have not finished.
func indexUnderway(field string, values func(*v1beta1.VirtualMachineRestore) []string) kit.Index {
	return kit.IndexBy(&v1beta1.VirtualMachineRestore{}, field, func(vmRestore *v1beta1.VirtualMachineRestore) []string {
		if restore.Finished(vmRestore.Status) {
			return nil
		}
		return values(vmRestore)
	})
}

// awaited returns the values of awaitedIndex: the snapshot, the claims and DataVolumes in the status, and the claims
// with the labels of the target's persistent state.
func awaited(vmRestore *v1beta1.VirtualMachineRestore) []string {
	target := vmRestore.Spec.Target.Name
	values := []string{
		awaitedSnapshot + vmRestore.Spec.VirtualMachineSnapshotName, awaitedState + podspec.LabelValue(target),
		awaitedObsolete + capture.StateVolume(target),
	}
	if vmRestore.Status == nil {
		return values
	}
	for i := range vmRestore.Status.Restores {
		values = append(values, awaitedClaim+vmRestore.Status.Restores[i].PersistentVolumeClaimName)
	}
	for _, name := range vmRestore.Status.DeletedDataVolumes {
		values = append(values, awaitedClaim+name)
	}
	return values
}

// LockIndex finds the VMs that are locked for a restore, by its name.
const LockIndex = "status.restoreInProgress"

var lockIndex = kit.IndexBy(&v1.VirtualMachine{}, LockIndex, LockOf)

// LockOf returns the values of LockIndex.
func LockOf(vm *v1.VirtualMachine) []string {
	if vm.Status.RestoreInProgress == nil {
		return nil
	}
	return []string{*vm.Status.RestoreInProgress}
}

// restoresOfVM returns the unfinished restores of a VM, and the one for which it is locked, even if that does not exist
// any more.
func (r *Reconciler) restoresOfVM(ctx context.Context, object client.Object) []ctrl.Request {
	requests := r.restoresOfTarget(ctx, object)
	if vm, ok := object.(*v1.VirtualMachine); ok {
		for _, name := range LockOf(vm) {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: vm.Namespace, Name: name}})
		}
	}
	return requests
}

// restoresOfTarget returns the unfinished restores of the VM that has the object's name.
func (r *Reconciler) restoresOfTarget(ctx context.Context, object client.Object) []ctrl.Request {
	return r.restoresByIndex(ctx, object.GetNamespace(), targetField, object.GetName())
}

// restoresOfClaim returns the unfinished restores that wait for a claim.
func (r *Reconciler) restoresOfClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	values := []string{awaitedClaim + claim.GetName()}
	if vm, ok := claim.GetLabels()[v1.PersistentStateLabel]; ok {
		values = append(values, awaitedState+vm)
	}
	if state, ok := claim.GetLabels()[snapshot.RestoreCleanupStateLabel]; ok {
		values = append(values, awaitedObsolete+state)
	}
	found := make([][]ctrl.Request, len(values))
	for i, value := range values {
		found[i] = r.restoresByIndex(ctx, claim.GetNamespace(), awaitedField, value)
	}
	return slices.Concat(found...)
}

// restoresOfSnapshot returns the unfinished restores of a snapshot, and restoresOfContent those of the snapshot that a
// content names.
func (r *Reconciler) restoresOfSnapshot(ctx context.Context, object client.Object) []ctrl.Request {
	return r.restoresByIndex(ctx, object.GetNamespace(), awaitedField, awaitedSnapshot+object.GetName())
}

func (r *Reconciler) restoresOfContent(ctx context.Context, object client.Object) []ctrl.Request {
	content, ok := object.(*v1beta1.VirtualMachineSnapshotContent)
	if !ok || content.Spec.VirtualMachineSnapshotName == nil {
		return nil
	}
	return r.restoresByIndex(ctx, content.Namespace, awaitedField,
		awaitedSnapshot+*content.Spec.VirtualMachineSnapshotName)
}

// restoresOfDataVolume returns the unfinished restores that wait for a DataVolume, or all if the importer was installed
// or removed.
func (r *Reconciler) restoresOfDataVolume(ctx context.Context, change datavolume.Change) []ctrl.Request {
	if change.Name == "" {
		return r.restoresByIndex(ctx, "", underwayField, underway)
	}
	return r.restoresByIndex(ctx, change.Namespace, awaitedField, awaitedClaim+change.Name)
}

// restoresByIndex returns the restores of a namespace, or of all namespaces, with this value in the index of the field.
func (r *Reconciler) restoresByIndex(ctx context.Context, namespace, field, value string) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1beta1.VirtualMachineRestoreList{},
		client.InNamespace(namespace), client.MatchingFields{field: value})
}
