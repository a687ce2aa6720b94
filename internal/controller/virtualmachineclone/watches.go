// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone

import (
	"context"
	"slices"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/internal/controller/reconciler"
	"github.com/vireo-project/vireo/internal/snapshot/clone"
)

// Indexes by which clones are found. Those underway are few; all others are found by their target, or by their restore while they have
// one.
const (
	underwayField, underway = "underway", "true"
	targetField             = "target"
	restoreField            = "restore"
)

var (
	underwayIndex = reconciler.IndexBy(&v1beta1.VirtualMachineClone{}, underwayField, func(of *v1beta1.VirtualMachineClone) []string {
		if !clone.IsUnderway(of) {
			return nil
		}
		return []string{underway}
	})
	targetIndex = reconciler.IndexBy(&v1beta1.VirtualMachineClone{}, targetField, func(of *v1beta1.VirtualMachineClone) []string {
		return []string{clone.TargetName(of)}
	})
	restoreIndex = reconciler.IndexBy(&v1beta1.VirtualMachineClone{}, restoreField, func(of *v1beta1.VirtualMachineClone) []string {
		if of.Status.RestoreName == nil {
			return nil
		}
		return []string{*of.Status.RestoreName}
	})
)

// isDeleted passes the deletion of an object.
var isDeleted = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// ofSnapshot returns the clones underway that restore a snapshot.
func (r *Reconciler) ofSnapshot(ctx context.Context, object client.Object) []ctrl.Request {
	return r.underway(ctx, object, func(of *v1beta1.VirtualMachineClone) bool { return clone.SnapshotName(of) == object.GetName() })
}

// ofRestore returns the clones underway of a restore.
func (r *Reconciler) ofRestore(ctx context.Context, object client.Object) []ctrl.Request {
	return r.underway(ctx, object, func(of *v1beta1.VirtualMachineClone) bool { return clone.RestoreName(of) == object.GetName() })
}

// ofVM returns the clones underway that have a VM as their source or their target.
func (r *Reconciler) ofVM(ctx context.Context, object client.Object) []ctrl.Request {
	return r.underway(ctx, object, func(of *v1beta1.VirtualMachineClone) bool {
		return of.Spec.Source != nil && of.Spec.Source.Name == object.GetName() || clone.TargetName(of) == object.GetName()
	})
}

// toVM returns all clones of which a VM is the target.
func (r *Reconciler) toVM(ctx context.Context, object client.Object) []ctrl.Request {
	return reconciler.Requests(ctx, r.Client, &v1beta1.VirtualMachineCloneList{},
		client.InNamespace(object.GetNamespace()), client.MatchingFields{targetField: object.GetName()})
}

// ofClaim returns the clone whose restore has made a claim.
func (r *Reconciler) ofClaim(ctx context.Context, object client.Object) []ctrl.Request {
	name := object.GetAnnotations()[snapshot.RestoreNameAnnotation]
	if name == "" {
		return nil
	}
	return reconciler.Requests(ctx, r.Client, &v1beta1.VirtualMachineCloneList{},
		client.InNamespace(object.GetNamespace()), client.MatchingFields{restoreField: name})
}

// underway returns the clones underway in the namespace of an object for which concerns returns true.
func (r *Reconciler) underway(ctx context.Context, object client.Object, concerns func(*v1beta1.VirtualMachineClone) bool) []ctrl.Request {
	list := &v1beta1.VirtualMachineCloneList{}
	err := r.Client.List(ctx, list, client.InNamespace(object.GetNamespace()), client.MatchingFields{underwayField: underway})
	if err != nil {
		if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Cannot list the clones underway", "namespace", object.GetNamespace())
		}
		return nil
	}
	list.Items = slices.DeleteFunc(list.Items, func(of v1beta1.VirtualMachineClone) bool { return !concerns(&of) })
	requests := make([]ctrl.Request, 0, len(list.Items))
	for i := range list.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}
