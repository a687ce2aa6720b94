// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/api/cdi"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/csi"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/manifests"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/wire/agentapi"
)

// NewScheme returns a scheme with every kind that virt-controller reads or writes.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(poolv1.AddToScheme(scheme))
	utilruntime.Must(cdi.AddToScheme(scheme))
	utilruntime.Must(v1beta1.AddToScheme(scheme))
	utilruntime.Must(snapshotv1beta1.AddToScheme(scheme))
	utilruntime.Must(clonev1beta1.AddToScheme(scheme))
	utilruntime.Must(csi.AddToScheme(scheme))
	utilruntime.Must(exportv1.AddToScheme(scheme))
	utilruntime.Must(backupv1alpha1.AddToScheme(scheme))
	return scheme
}

// podWarnings selects events among which are the reasons why launcher Pods do not start. A field selector has no "or",
// so it excludes the most frequent other reasons; transformEvent drops the contents of the remaining others.
const podWarnings = "involvedObject.kind=Pod,type=Warning," +
	"reason!=FailedScheduling,reason!=BackOff,reason!=Unhealthy,reason!=Failed,reason!=Evicted"

// transformNode removes the status of a Node, which lists all its images and is not used.
func transformNode(o any) (any, error) {
	o, err := cache.TransformStripManagedFields()(o)
	if node, ok := o.(*corev1.Node); ok {
		node.Status = corev1.NodeStatus{}
	}
	return o, err
}

// transformPod keeps of a launcher Pod's spec what is read: where it runs and may run, the images, the claims, and
// those resources of the launcher's container that change with the size of the guest. The rest, which is most of a Pod,
// can be rendered from the VMI.
func transformPod(o any) (any, error) {
	o, err := cache.TransformStripManagedFields()(o)
	if pod, ok := o.(*corev1.Pod); ok {
		kept := corev1.PodSpec{NodeName: pod.Spec.NodeName, NodeSelector: pod.Spec.NodeSelector}
		for i := range pod.Spec.Containers {
			container := corev1.Container{Name: pod.Spec.Containers[i].Name, Image: pod.Spec.Containers[i].Image}
			if container.Name == launcherpod.ComputeContainer {
				container.Resources = resize.Resizable(pod.Spec.Containers[i].Resources)
				if podspec.StartedByKubeVirt(pod) {
					container.Command = pod.Spec.Containers[i].Command[:1]
				}
			}
			kept.Containers = append(kept.Containers, container)
		}
		for i := range pod.Spec.Volumes {
			if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil {
				kept.Volumes = append(kept.Volumes, *v)
			}
		}
		pod.Spec = kept
	}
	return o, err
}

// readAnnotations are the annotations of claims that reconcilers read. A claim may have others, of which storage
// drivers and importers mark it as preallocated with some.
var readAnnotations = []string{
	snapshot.RestoreNameAnnotation, snapshot.LastRestoreAnnotation, snapshot.RestoreOwnedByVMAnnotation,
	cdi.ContentTypeAnnotation, v1.PVCMemoryDumpAnnotation,
}

// Bytes of the annotations of a claim that the cache keeps: of one, and of all but readAnnotations. A claim may have
// 256 KiB, which only a snapshot needs: it reads the claim from the API server.
const (
	maxClaimAnnotation  = 1 << 10
	maxClaimAnnotations = 4 << 10
)

// transformClaim removes annotations from a claim that are long or too many. Patches are computed from what is kept, so
// they change nothing else.
func transformClaim(o any) (any, error) {
	o, err := cache.TransformStripManagedFields()(o)
	claim, ok := o.(*corev1.PersistentVolumeClaim)
	if !ok || len(claim.Annotations) == 0 {
		return o, err
	}
	delete(claim.Annotations, corev1.LastAppliedConfigAnnotation)
	left := maxClaimAnnotations
	for _, key := range slices.Sorted(maps.Keys(claim.Annotations)) {
		n := len(key) + len(claim.Annotations[key])
		switch {
		case n > maxClaimAnnotation:
			delete(claim.Annotations, key)
		case slices.Contains(readAnnotations, key):
		case n > left:
			delete(claim.Annotations, key)
		default:
			left -= n
		}
	}
	return o, err
}

// transformNamespace keeps the name and the labels of a namespace. Only its metadata is watched.
func transformNamespace(o any) (any, error) {
	if n, ok := o.(*metav1.PartialObjectMetadata); ok {
		n.ObjectMeta = metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Labels: n.Labels}
	}
	return o, nil
}

// transformEvent removes everything but the metadata of an event, unless it is the reason why a launcher Pod does not
// start.
func transformEvent(o any) (any, error) {
	e, ok := o.(*corev1.Event)
	if !ok {
		return o, nil
	}
	kept := &corev1.Event{ObjectMeta: metav1.ObjectMeta{
		Namespace: e.Namespace, Name: e.Name, UID: e.UID, ResourceVersion: e.ResourceVersion,
		CreationTimestamp: e.CreationTimestamp,
	}}
	if virtualmachineinstance.IsStartFailure(e) {
		kept.InvolvedObject, kept.Type, kept.Reason, kept.Message = e.InvolvedObject, e.Type, e.Reason, e.Message
		kept.LastTimestamp, kept.EventTime, kept.Series = e.LastTimestamp, e.EventTime, e.Series
	}
	return kept, nil
}

// otherSigners excludes the most frequent requests of others, those of kubelets and users. A field selector cannot
// select our signers, since it has no "or".
const otherSigners = "spec.signerName!=kubernetes.io/kubelet-serving," +
	"spec.signerName!=kubernetes.io/kube-apiserver-client-kubelet,spec.signerName!=kubernetes.io/kube-apiserver-client"

// cacheOptions restricts the cache to launcher Pods and attachment Pods, and in the install namespace to the objects of
// agents, the installed components and the Secrets of certificates and CAs. The Roles of virt-controller allow no more.
func cacheOptions(namespace string) cache.Options {
	labeled := func(values ...string) labels.Selector {
		requirement, err := labels.NewRequirement(v1.AppLabel, selection.In, values)
		utilruntime.Must(err) // the values are constants
		return labels.NewSelector().Add(*requirement)
	}
	here := func(selector labels.Selector) cache.ByObject {
		return cache.ByObject{Namespaces: map[string]cache.Config{namespace: {LabelSelector: selector}}}
	}
	agents := labeled(agentapi.LabelValue)
	created, err := labels.NewRequirement(v1.CreatedByLabel, selection.Exists, nil)
	utilruntime.Must(err)
	component, err := labels.NewRequirement(v1.AppLabel, selection.Exists, nil)
	utilruntime.Must(err)
	installed := labels.SelectorFromSet(labels.Set{manifests.ManagedByLabel: manifests.ManagedBy})
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labeled(launcherpod.AppLabelValue, launcherpod.AttachmentLabelValue),
				Transform: transformPod},
			// The revisions with the specs that VMs were started with, with the instance types and preferences of VMs, and with
			// the templates of pools.
			&appsv1.ControllerRevision{}:    {Label: labels.NewSelector().Add(*created)},
			&corev1.Event{}:                 {Field: fields.ParseSelectorOrDie(podWarnings), Transform: transformEvent},
			&corev1.Node{}:                  {Transform: transformNode},
			&corev1.PersistentVolumeClaim{}: {Transform: transformClaim},
			&corev1.Namespace{}:             {Transform: transformNamespace},
			&coordinationv1.Lease{}:         here(agents),
			&corev1.ConfigMap{}:             here(labeled(agentapi.LabelValue, certificate.BundleName)),
			&appsv1.DaemonSet{}:             here(installed),
			// With virt-controller's own, which it does not install.
			&appsv1.Deployment{}: here(labels.NewSelector().Add(*component)),
			&corev1.Service{}:    here(installed),
			&corev1.Secret{}:     here(labeled(componentName, certificate.AuthorityLabelValue)),

			&policyv1.PodDisruptionBudget{}:             here(installed),
			&certificatesv1.CertificateSigningRequest{}: {Field: fields.ParseSelectorOrDie(otherSigners)},
		},
	}
}
