// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/internal/controller/reconciler"
	"github.com/vireo-project/vireo/internal/snapshot/clone"
)

// Indexes of clones. A clone that is underway is found by everything that it waits for, a finished one by its target, and by its restore
// while it has one.
const (
	awaitedField = "awaited"
	targetField  = "target"
	restoreField = "restore"
)

// ClaimIndex finds the claims that a restore has made.
const ClaimIndex = "metadata.annotations.restore"

// RestoreOfClaim returns the values of ClaimIndex.
func RestoreOfClaim(claim *corev1.PersistentVolumeClaim) []string {
	name := claim.Annotations[snapshot.RestoreNameAnnotation]
	if name == "" {
		return nil
	}
	return []string{name}
}

// Kinds of what a clone waits for, in the values of awaitedIndex.
const awaitedSnapshot, awaitedRestore, awaitedVM = "snapshot/", "restore/", "vm/"

var (
	awaitedIndex = reconciler.IndexBy(&v1beta1.VirtualMachineClone{}, awaitedField, func(of *v1beta1.VirtualMachineClone) []string {
		if !clone.IsUnderway(of) {
			return nil
		}
		names := []string{awaitedSnapshot + clone.SnapshotName(of), awaitedRestore + clone.RestoreName(of), awaitedVM + clone.TargetName(of)}
		if of.Spec.Source != nil {
			names = append(names, awaitedVM+of.Spec.Source.Name)
		}
		return names
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
	claimIndex = reconciler.IndexBy(&corev1.PersistentVolumeClaim{}, ClaimIndex, RestoreOfClaim)
)

// isDeleted passes the deletion of an object.
var isDeleted = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false }, UpdateFunc: func(event.UpdateEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
}

// ofSnapshot returns the clones underway that restore a snapshot.
func (r *Reconciler) ofSnapshot(ctx context.Context, object client.Object) []ctrl.Request {
	return r.by(ctx, object.GetNamespace(), awaitedField, awaitedSnapshot+object.GetName())
}

// ofRestore returns the clones underway of a restore.
func (r *Reconciler) ofRestore(ctx context.Context, object client.Object) []ctrl.Request {
	return r.by(ctx, object.GetNamespace(), awaitedField, awaitedRestore+object.GetName())
}

// ofVM returns the clones underway that have a VM as their source or their target.
func (r *Reconciler) ofVM(ctx context.Context, object client.Object) []ctrl.Request {
	return r.by(ctx, object.GetNamespace(), awaitedField, awaitedVM+object.GetName())
}

// toVM returns all clones of which a VM is the target.
func (r *Reconciler) toVM(ctx context.Context, object client.Object) []ctrl.Request {
	return r.by(ctx, object.GetNamespace(), targetField, object.GetName())
}

// ofClaim returns the clone whose restore has made a claim.
func (r *Reconciler) ofClaim(ctx context.Context, object client.Object) []ctrl.Request {
	name := object.GetAnnotations()[snapshot.RestoreNameAnnotation]
	if name == "" {
		return nil
	}
	return r.by(ctx, object.GetNamespace(), restoreField, name)
}

// by returns the clones of a namespace with a value in an index.
func (r *Reconciler) by(ctx context.Context, namespace, field, value string) []ctrl.Request {
	return reconciler.Requests(ctx, r.Client, &v1beta1.VirtualMachineCloneList{},
		client.InNamespace(namespace), client.MatchingFields{field: value})
}
