// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinerestore

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	"github.com/vireo-project/vireo/internal/controller/datavolume"
	"github.com/vireo-project/vireo/internal/controller/reconciler"
	"github.com/vireo-project/vireo/internal/snapshot/restore"
)

// Indexes by which restores are found that have not finished, by the name of their target, and all of them by the value underway. There
// are few of them.
const (
	targetField             = "target"
	underwayField, underway = "underway", "true"
)

var (
	targetIndex = reconciler.IndexBy(&v1beta1.VirtualMachineRestore{}, targetField, func(of *v1beta1.VirtualMachineRestore) []string {
		if restore.Finished(of.Status) {
			return nil
		}
		return []string{of.Spec.Target.Name}
	})
	underwayIndex = reconciler.IndexBy(&v1beta1.VirtualMachineRestore{}, underwayField, func(of *v1beta1.VirtualMachineRestore) []string {
		if restore.Finished(of.Status) {
			return nil
		}
		return []string{underway}
	})
)

// comesOrGoes passes the creation and the deletion of a VMI. A restore waits until its target has none.
var comesOrGoes = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}

// inNamespace returns the restores underway in the namespace of an object.
func (r *Reconciler) inNamespace(ctx context.Context, object client.Object) []ctrl.Request {
	return reconciler.Requests(ctx, r.Client, &v1beta1.VirtualMachineRestoreList{},
		client.InNamespace(object.GetNamespace()), client.MatchingFields{underwayField: underway})
}

// ofTarget returns the restores underway to the VM of an object's name.
func (r *Reconciler) ofTarget(ctx context.Context, object client.Object) []ctrl.Request {
	return reconciler.Requests(ctx, r.Client, &v1beta1.VirtualMachineRestoreList{},
		client.InNamespace(object.GetNamespace()), client.MatchingFields{targetField: object.GetName()})
}

// withDataVolume returns the restores underway in the namespace of a DataVolume, or in all if the importer was installed or removed.
func (r *Reconciler) withDataVolume(ctx context.Context, change datavolume.Change) []ctrl.Request {
	return reconciler.Requests(ctx, r.Client, &v1beta1.VirtualMachineRestoreList{},
		client.InNamespace(change.Namespace), client.MatchingFields{underwayField: underway})
}
