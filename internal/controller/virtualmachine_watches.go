// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/internal/datavolume"
)

// DataVolumes are those of the importer, and wake those who use them. datavolume.Store is one.
type DataVolumes interface {
	datavolume.Reader
	// Source wakes those whom a change concerns.
	Source(users func(context.Context, datavolume.Change) []reconcile.Request) *datavolume.Source
}

// What VMs are found by: the claims of their volumes, and whether they have DataVolumes.
const (
	vmClaimIndex = "spec.template.spec.volumes.persistentVolumeClaim"
	importIndex  = "has-data-volumes"
	hasImports   = "true"
)

func indexForVMs(indexer client.FieldIndexer) error {
	return addIndexes(
		indexer,
		indexBy(&v1.VirtualMachine{}, vmClaimIndex, virtualmachine.ClaimNames),
		indexBy(&v1.VirtualMachine{}, importIndex, func(vm *v1.VirtualMachine) []string {
			if len(virtualmachine.DataVolumeNames(vm)) == 0 {
				return nil
			}
			return []string{hasImports}
		}),
	)
}

// usersOfClaim are the VMs whose status may tell that they wait for a claim.
func (r *VirtualMachineReconciler) usersOfClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	return r.find(ctx, client.InNamespace(claim.GetNamespace()), client.MatchingFields{vmClaimIndex: claim.GetName()})
}

// usersOfDataVolume are the VMs with a volume of a DataVolume's name, or all with DataVolumes if the cluster began or ceased
// to have any.
func (r *VirtualMachineReconciler) usersOfDataVolume(ctx context.Context, change datavolume.Change) []reconcile.Request {
	if change.Name == "" {
		return r.find(ctx, client.MatchingFields{importIndex: hasImports})
	}
	return r.find(ctx, client.InNamespace(change.Namespace), client.MatchingFields{vmClaimIndex: change.Name})
}

func (r *VirtualMachineReconciler) find(ctx context.Context, options ...client.ListOption) []ctrl.Request {
	return concerned(ctx, r.Client, &v1.VirtualMachineList{}, options...)
}

// bindings passes claims that are new or whose phase changed.
var bindings = predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.PersistentVolumeClaim)
		after, is := e.ObjectNew.(*corev1.PersistentVolumeClaim)
		return ok && is && before.Status.Phase != after.Status.Phase
	},
	GenericFunc: func(event.GenericEvent) bool { return false },
}
