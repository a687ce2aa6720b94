// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/api/cdi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/decide/export"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// Kinds of sources that are watched.
const (
	kindClaim    = export.KindClaim
	kindVM       = export.KindVM
	kindSnapshot = export.KindSnapshot
	kindBackup   = export.KindBackup
)

// sourceField is the field of the index of exports. Its values are the kind of the source, alone and with the source's
// name.
const sourceField = "source"

var sourceIndex = kit.IndexBy(&exportv1.VirtualMachineExport{}, sourceField, sourceValues)

func sourceValues(object *exportv1.VirtualMachineExport) []string {
	kind := export.SourceKind(object)
	return []string{kind, kind + "/" + object.Spec.Source.Name}
}

// startsOrEnds accepts the creation, the end and the deletion of a VMI or of a Pod.
var startsOrEnds = kit.Updates(func(before, after client.Object) bool { return hasEnded(before) != hasEnded(after) })

func hasEnded(object client.Object) bool {
	switch o := object.(type) {
	case *v1.VirtualMachineInstance:
		return o.IsFinal()
	case *corev1.Pod:
		return podstate.Terminal(o)
	default:
		return false
	}
}

// exportChanges accepts the creation and the deletion of an export, and changes of its spec and of its owners. The
// status is written by its reconciler, which plans again when its RequeueAfter has passed, and anybody may change
// labels and annotations all the time.
var exportChanges = kit.Updates(func(before, after client.Object) bool {
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() ||
		!equality.Semantic.DeepEqual(before.GetOwnerReferences(), after.GetOwnerReferences())
})

// claimState contains the properties of a claim on which exports depend.
type claimState struct {
	phase      corev1.PersistentVolumeClaimPhase
	deleted    bool
	owner      types.UID
	content    string
	hasContent bool
	stateOf    string
	size       string
}

func claimStateOf(object client.Object) claimState {
	claim, ok := object.(*corev1.PersistentVolumeClaim)
	if !ok {
		return claimState{}
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	state := claimState{
		phase: claim.Status.Phase, deleted: claim.DeletionTimestamp != nil, stateOf: claim.Labels[v1.PersistentStateLabel],
		size: size.String(),
	}
	state.content, state.hasContent = claim.Annotations[cdi.ContentTypeAnnotation]
	if owner := metav1.GetControllerOf(claim); owner != nil {
		state.owner = owner.UID
	}
	return state
}

// claimChanges accepts the creation and the deletion of a claim, and the changes on which exports depend.
var claimChanges = kit.Updates(
	func(before, after client.Object) bool { return claimStateOf(before) != claimStateOf(after) })

// exportsByIndex returns the exports of a namespace with this value in the index.
func (r *Reconciler) exportsByIndex(ctx context.Context, namespace, value string) []ctrl.Request {
	return kit.Requests(ctx, r.Client, &exportv1.VirtualMachineExportList{},
		client.InNamespace(namespace), client.MatchingFields{sourceField: value})
}

// exportsOfSource returns a function that returns the exports of a source of this kind.
func (r *Reconciler) exportsOfSource(kind string) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []ctrl.Request {
		return r.exportsByIndex(ctx, object.GetNamespace(), kind+"/"+object.GetName())
	}
}

// exportsOfContent returns the exports of the snapshot of a content.
func (r *Reconciler) exportsOfContent(ctx context.Context, object client.Object) []ctrl.Request {
	stored, ok := object.(*v1beta1.VirtualMachineSnapshotContent)
	if !ok || stored.Spec.VirtualMachineSnapshotName == nil {
		return nil
	}
	return r.exportsByIndex(ctx, stored.Namespace, kindSnapshot+"/"+*stored.Spec.VirtualMachineSnapshotName)
}

// exportsOfClaim returns the exports that read a claim, and the one that has created it from a snapshot.
func (r *Reconciler) exportsOfClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	if owner := metav1.GetControllerOf(claim); isExport(owner) {
		return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: claim.GetNamespace(), Name: owner.Name}}}
	}
	requests := r.exportsOfClaims(ctx, claim.GetNamespace(), claim.GetName())
	if vm := virtualmachineinstance.UserOfState(claim); vm != "" {
		requests = append(requests, r.exportsByIndex(ctx, claim.GetNamespace(), kindVM+"/"+vm)...)
	}
	return requests
}

// exportsOfLauncher returns the exports of the claims that a launcher Pod uses.
func (r *Reconciler) exportsOfLauncher(ctx context.Context, object client.Object) []ctrl.Request {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil
	}
	var claims []string
	for i := range pod.Spec.Volumes {
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			claims = append(claims, claim.ClaimName)
		}
	}
	return r.exportsOfClaims(ctx, pod.Namespace, claims...)
}

// exportsOfDataVolume returns the exports that read the claim of a DataVolume, or all if the importer was installed or
// removed.
func (r *Reconciler) exportsOfDataVolume(ctx context.Context, change datavolume.Change) []ctrl.Request {
	if change.Name == "" {
		return kit.Requests(ctx, r.Client, &exportv1.VirtualMachineExportList{})
	}
	return r.exportsOfClaims(ctx, change.Namespace, change.Name)
}

// exportsOfClaims returns the exports of claims, and of the VMs that have one of them in their templates.
func (r *Reconciler) exportsOfClaims(ctx context.Context, namespace string, claims ...string) []ctrl.Request {
	if len(claims) == 0 {
		return nil
	}
	var requests []ctrl.Request
	for _, claim := range claims {
		requests = append(requests, r.exportsByIndex(ctx, namespace, kindClaim+"/"+claim)...)
	}
	list := &exportv1.VirtualMachineExportList{}
	err := r.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{sourceField: kindVM},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		if ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Cannot list the exports of VMs", "namespace", namespace)
		}
		return requests
	}
	concerned := map[string]bool{} // by the name of the VM, which may have many exports
	for i := range list.Items {
		export := &list.Items[i]
		name := export.Spec.Source.Name
		if _, known := concerned[name]; !known {
			concerned[name] = r.mayHaveClaim(ctx, client.ObjectKey{Namespace: namespace, Name: name}, claims)
		}
		if concerned[name] {
			requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(export)})
		}
	}
	return requests
}

// mayHaveClaim reports whether a VM has one of the claims in its template, or cannot be read.
func (r *Reconciler) mayHaveClaim(ctx context.Context, key client.ObjectKey, claims []string) bool {
	vm := &v1.VirtualMachine{}
	if err := r.Client.Get(ctx, key, vm, client.UnsafeDisableDeepCopy); err != nil {
		return !apierrors.IsNotFound(err)
	}
	if vm.Spec.Template == nil {
		return false
	}
	volumes := vm.Spec.Template.Spec.Volumes
	for i := range volumes {
		if name := capture.ClaimName(&volumes[i]); name != "" && slices.Contains(claims, name) {
			return true
		}
	}
	return false
}
