// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
)

// claimIndex finds VMs by the claims of their volumes.
const claimIndex = "spec.template.spec.volumes.persistentVolumeClaim"

// referenceIndex finds VMs by the instance types and preferences of which they have no ControllerRevision yet. Changes
// of the others do not concern a VM.
const referenceIndex = "waits-for-reference"

func indexForVMs(indexer client.FieldIndexer) error {
	revision := &metav1.PartialObjectMetadata{}
	revision.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ControllerRevision"))
	return kit.AddIndexes(
		indexer,
		kit.IndexBy(revision, kit.CreatedByIndex, func(r *metav1.PartialObjectMetadata) []string { return kit.CreatedBy(r) }),
		kit.IndexBy(&v1.VirtualMachine{}, claimIndex, ClaimNames),
		kit.IndexBy(&v1.VirtualMachine{}, referenceIndex, reference.Waiting),
		kit.IndexBy(&v1.VirtualMachine{}, kit.DataVolumeIndex, func(vm *v1.VirtualMachine) []string {
			if len(DataVolumeNames(vm)) == 0 {
				return nil
			}
			return []string{kit.HasDataVolumes}
		}),
	)
}

// vmsWithClaim returns the VMs whose status depends on a claim.
func (r *Reconciler) vmsWithClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	return r.find(ctx, client.InNamespace(claim.GetNamespace()), client.MatchingFields{claimIndex: claim.GetName()})
}

// vmsThatWaitFor returns a function that returns the VMs that wait for an object of a kind.
func (r *Reconciler) vmsThatWaitFor(kind reference.Kind) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []ctrl.Request {
		options := []client.ListOption{client.MatchingFields{referenceIndex: reference.Key(kind, object.GetName())}}
		if kind.Namespaced {
			options = append(options, client.InNamespace(object.GetNamespace()))
		}
		return r.find(ctx, options...)
	}
}

// vmsWithDataVolume returns the VMs with a volume of a DataVolume's name, or all VMs with DataVolumes if the importer
// was installed or removed.
func (r *Reconciler) vmsWithDataVolume(ctx context.Context, change datavolume.Change) []reconcile.Request {
	if change.Name == "" {
		return r.find(ctx, client.MatchingFields{kit.DataVolumeIndex: kit.HasDataVolumes})
	}
	return r.find(ctx, client.InNamespace(change.Namespace), client.MatchingFields{claimIndex: change.Name})
}

func (r *Reconciler) find(ctx context.Context, options ...client.ListOption) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1.VirtualMachineList{}, options...)
}

// specChanged selects objects that are new or whose spec changed.
var specChanged = kit.ExceptDeletions(kit.Updates(func(before, after client.Object) bool {
	return before.GetGeneration() != after.GetGeneration()
}))

// claimPhaseChanged selects claims that are new or whose phase changed.
var claimPhaseChanged = kit.Updates(func(before, after *corev1.PersistentVolumeClaim) bool {
	return before.Status.Phase != after.Status.Phase
})

// vmsOfNamespace returns the VMs that a namespace's labels may select.
func (r *Reconciler) vmsOfNamespace(ctx context.Context, namespace client.Object) []ctrl.Request {
	if config := r.Config.Current(); config.ChangedBlockTracking.Namespaces == nil {
		return nil
	}
	return kit.Requests(ctx, r.Client, &v1.VirtualMachineList{}, client.InNamespace(namespace.GetName()))
}

// vmOfMigration returns the VM whose VMI migrates.
func vmOfMigration(_ context.Context, object client.Object) []ctrl.Request {
	m, ok := object.(*v1.VirtualMachineInstanceMigration)
	if !ok {
		return nil
	}
	return []ctrl.Request{{NamespacedName: client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}}}
}

// migrationEnded passes migrations that have ended: the instance may follow the template again. If the migration was
// assigned, the VMI has changed before.
var migrationEnded = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: kit.Updates(func(before, after *v1.VirtualMachineInstanceMigration) bool {
		return !before.IsFinal() && after.IsFinal()
	}).UpdateFunc,
	DeleteFunc: func(e event.DeleteEvent) bool {
		m, ok := e.Object.(*v1.VirtualMachineInstanceMigration)
		return ok && !m.IsFinal()
	},
}
