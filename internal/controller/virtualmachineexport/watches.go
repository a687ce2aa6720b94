// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineexport

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/datavolume"
	"github.com/vireo-project/vireo/internal/controller/reconciler"
	"github.com/vireo-project/vireo/internal/export/plan"
)

// Kinds of sources that are watched.
const (
	kindVM       = plan.KindVM
	kindSnapshot = plan.KindSnapshot
)

// sourceField is the field of the index by which exports are found by the kind and the name of their source.
const sourceField = "source"

var sourceIndex = reconciler.IndexBy(&exportv1.VirtualMachineExport{}, sourceField, func(of *exportv1.VirtualMachineExport) []string {
	return []string{plan.SourceKind(of) + "/" + of.Spec.Source.Name}
})

// startsOrEnds passes the creation, the end and the deletion of a VMI.
var startsOrEnds = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1.VirtualMachineInstance)
	after, also := e.ObjectNew.(*v1.VirtualMachineInstance)
	return ok && also && before.IsFinal() != after.IsFinal()
}}

// ofSource returns a function that returns the exports of an object.
func (r *Reconciler) ofSource(kind string) handler.MapFunc {
	return func(ctx context.Context, object client.Object) []ctrl.Request {
		return reconciler.Requests(ctx, r.Client, &exportv1.VirtualMachineExportList{},
			client.InNamespace(object.GetNamespace()), client.MatchingFields{sourceField: kind + "/" + object.GetName()})
	}
}

// inNamespace returns the exports in the namespace of an object. There are few of them.
func (r *Reconciler) inNamespace(ctx context.Context, object client.Object) []ctrl.Request {
	return reconciler.Requests(ctx, r.Client, &exportv1.VirtualMachineExportList{}, client.InNamespace(object.GetNamespace()))
}

// withDataVolume returns the exports in the namespace of a DataVolume, or all if the importer was installed or removed.
func (r *Reconciler) withDataVolume(ctx context.Context, change datavolume.Change) []ctrl.Request {
	return reconciler.Requests(ctx, r.Client, &exportv1.VirtualMachineExportList{}, client.InNamespace(change.Namespace))
}

// exportOf returns the export of an exporter's Pod.
func exportOf(_ context.Context, pod *corev1.Pod) []ctrl.Request {
	owner := metav1.GetControllerOf(pod)
	if !isExport(owner) {
		return nil
	}
	return []ctrl.Request{{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}}}
}

func isExport(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == "VirtualMachineExport" && owner.APIVersion == exportv1.GroupVersion.String()
}

// Pods reads the Pods of exporters and enqueues their exports.
type Pods interface {
	client.Reader
	// Source enqueues what users returns for a Pod that has changed.
	Source(users func(context.Context, *corev1.Pod) []ctrl.Request) source.Source
}

// PodCache is a cache of the Pods of exporters. The manager's has those of launchers, and its readers expect no others.
type PodCache struct{ cache.Cache }

// NewPodCache makes the cache, and adds it to a manager.
func NewPodCache(mgr ctrl.Manager) (PodCache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: labels.SelectorFromSet(labels.Set{v1.AppLabel: exportv1.App})}},
	})
	if err != nil {
		return PodCache{}, fmt.Errorf("cannot make a cache of exporters: %w", err)
	}
	return PodCache{c}, mgr.Add(c)
}

// Source implements Pods.
func (p PodCache) Source(users func(context.Context, *corev1.Pod) []ctrl.Request) source.Source {
	return source.Kind(p.Cache, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(users))
}
