// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineclone

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/decide/clone"
)

// Fields of the indexes of clones. An unfinished clone is indexed by everything that it waits for; every clone by its
// target, and by its restore if it has one.
const (
	awaitedField = "awaited"
	targetField  = "target"
	restoreField = "restore"
)

// ClaimIndex finds the claims that a restore has created.
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
	awaitedIndex = kit.IndexBy(&v1beta1.VirtualMachineClone{}, awaitedField,
		func(vmClone *v1beta1.VirtualMachineClone) []string {
			if !clone.IsUnderway(vmClone) {
				return nil
			}
			names := []string{awaitedSnapshot + clone.SnapshotName(vmClone), awaitedRestore + clone.RestoreName(vmClone),
				awaitedVM + clone.TargetName(vmClone)}
			if vmClone.Spec.Source != nil {
				names = append(names, awaitedVM+vmClone.Spec.Source.Name)
			}
			return names
		})
	targetIndex = kit.IndexBy(&v1beta1.VirtualMachineClone{}, targetField,
		func(vmClone *v1beta1.VirtualMachineClone) []string {
			return []string{clone.TargetName(vmClone)}
		})
	restoreIndex = kit.IndexBy(&v1beta1.VirtualMachineClone{}, restoreField,
		func(vmClone *v1beta1.VirtualMachineClone) []string {
			if vmClone.Status.RestoreName == nil {
				return nil
			}
			return []string{*vmClone.Status.RestoreName}
		})
	claimIndex = kit.IndexBy(&corev1.PersistentVolumeClaim{}, ClaimIndex, RestoreOfClaim)
)

// clonesOfSnapshot returns the unfinished clones that restore a snapshot.
func (r *Reconciler) clonesOfSnapshot(ctx context.Context, object client.Object) []ctrl.Request {
	return r.clonesByIndex(ctx, object.GetNamespace(), awaitedField, awaitedSnapshot+object.GetName())
}

// clonesOfRestore returns the unfinished clones that use a restore.
func (r *Reconciler) clonesOfRestore(ctx context.Context, object client.Object) []ctrl.Request {
	return r.clonesByIndex(ctx, object.GetNamespace(), awaitedField, awaitedRestore+object.GetName())
}

// clonesOfVM returns the unfinished clones of which a VM is the source or the target.
func (r *Reconciler) clonesOfVM(ctx context.Context, object client.Object) []ctrl.Request {
	return r.clonesByIndex(ctx, object.GetNamespace(), awaitedField, awaitedVM+object.GetName())
}

// clonesToVM returns all clones of which a VM is the target, also those that have finished.
func (r *Reconciler) clonesToVM(ctx context.Context, object client.Object) []ctrl.Request {
	return r.clonesByIndex(ctx, object.GetNamespace(), targetField, object.GetName())
}

// clonesOfClaim returns the clone whose restore has created a claim.
func (r *Reconciler) clonesOfClaim(ctx context.Context, object client.Object) []ctrl.Request {
	name := object.GetAnnotations()[snapshot.RestoreNameAnnotation]
	if name == "" {
		return nil
	}
	return r.clonesByIndex(ctx, object.GetNamespace(), restoreField, name)
}

// clonesByIndex returns the clones of a namespace with this value in the index of the field.
func (r *Reconciler) clonesByIndex(ctx context.Context, namespace, field, value string) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &v1beta1.VirtualMachineCloneList{},
		client.InNamespace(namespace), client.MatchingFields{field: value})
}
