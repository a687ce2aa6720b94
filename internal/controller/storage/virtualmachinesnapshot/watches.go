// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinesnapshot

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/claimusers"
)

// unfinishedIndex finds the snapshots that are neither taken nor have failed, and those that are being deleted, by the
// name of the VM.
const unfinishedIndex = "unfinished-of-virtualmachine"

func indexSnapshots(indexer client.FieldIndexer) error {
	return kit.AddIndexes(
		indexer,
		kit.IndexBy(&v1beta1.VirtualMachineSnapshot{}, unfinishedIndex, func(s *v1beta1.VirtualMachineSnapshot) []string {
			if s.DeletionTimestamp == nil && s.Status != nil &&
				(s.Status.Phase == v1beta1.Succeeded || s.Status.Phase == v1beta1.Failed) {
				return nil
			}
			return []string{s.Spec.Source.Name}
		}),
		kit.IndexBy(&corev1.Pod{}, claimusers.Index, claimusers.ClaimsOf),
		kit.IndexBy(&v1.VirtualMachine{}, LockIndex, LockOf),
	)
}

// LockIndex finds the VMs that are locked for a snapshot, by its name.
const LockIndex = "status.snapshotInProgress"

// LockOf returns the values of LockIndex.
func LockOf(vm *v1.VirtualMachine) []string {
	if vm.Status.SnapshotInProgress == nil {
		return nil
	}
	return []string{*vm.Status.SnapshotInProgress}
}

// snapshotOf returns the snapshot of a content.
func snapshotOf(_ context.Context, object client.Object) []ctrl.Request {
	content, ok := object.(*v1beta1.VirtualMachineSnapshotContent)
	if !ok || content.Spec.VirtualMachineSnapshotName == nil {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: content.Namespace,
		Name: *content.Spec.VirtualMachineSnapshotName}}}
}

// snapshotsOfVM returns the unfinished snapshots of a VM, and the one for which it is locked, even if that does not
// exist any more.
func (r *Reconciler) snapshotsOfVM(ctx context.Context, object client.Object) []ctrl.Request {
	requests := r.unfinishedOf(ctx, object)
	if vm, ok := object.(*v1.VirtualMachine); ok {
		for _, name := range LockOf(vm) {
			requests = append(requests, ctrl.Request{NamespacedName: types.NamespacedName{Namespace: vm.Namespace, Name: name}})
		}
	}
	return requests
}

// unfinishedOf returns the unfinished snapshots of the VM that has the object's name.
func (r *Reconciler) unfinishedOf(ctx context.Context, object client.Object) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1beta1.VirtualMachineSnapshotList{}, client.InNamespace(object.GetNamespace()),
		client.MatchingFields{unfinishedIndex: object.GetName()})
}

// guestChanged accepts an update of a VMI only if it changes what a snapshot reports about the guest, or the owner.
// Agents update many other fields.
var guestChanged = kit.Updates(func(before, after *v1.VirtualMachineInstance) bool {
	return guestOf(before) != guestOf(after) || !equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences)
})
