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
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/export"
)

// exportOfPod returns the export of an exporter's Pod.
func exportOfPod(_ context.Context, pod *corev1.Pod) []ctrl.Request {
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

// PodCache is a cache of the Pods of exporters. The manager's cache is not used for them: its readers expect only
// launcher Pods.
type PodCache struct{ cache.Cache }

// NewPodCache makes the cache, and adds it to a manager.
func NewPodCache(mgr ctrl.Manager) (PodCache, error) {
	c, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {
			Label: labels.SelectorFromSet(labels.Set{v1.AppLabel: exportv1.App}), Transform: transformPod,
		}},
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

// transformPod keeps of a Pod what the reconcilers of exports and of backups read. Of a Pod that no export controls,
// which another client may have labeled, it keeps the identity. Patches are computed from what is kept, so they change
// nothing else.
func transformPod(o any) (any, error) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	kept := &corev1.Pod{TypeMeta: pod.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
	}}
	// The selector of the cache applies to what is kept, too.
	kept.Labels = map[string]string{v1.AppLabel: pod.Labels[v1.AppLabel]}
	owner := metav1.GetControllerOf(pod)
	if !isExport(owner) {
		return kept, nil
	}
	kept.OwnerReferences = []metav1.OwnerReference{*owner}
	for _, name := range []string{export.ContentAnnotation, export.CertificateEndAnnotation, export.ImageAnnotation} {
		if value, found := pod.Annotations[name]; found {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, name, value)
		}
	}
	kept.Spec.ActiveDeadlineSeconds = pod.Spec.ActiveDeadlineSeconds
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.PersistentVolumeClaim != nil || v.Secret != nil {
			kept.Spec.Volumes = append(kept.Spec.Volumes, *v)
		}
	}
	kept.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Message: pod.Status.Message, PodIP: pod.Status.PodIP,
		Conditions: pod.Status.Conditions, ContainerStatuses: pod.Status.ContainerStatuses,
	}
	return kept, nil
}
