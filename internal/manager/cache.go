// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
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

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/certificate"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/nodecapabilities"
	"github.com/vireo-project/vireo/internal/operator"
)

// LauncherLabelValue is the value of the label kubevirt.io on launcher Pods.
const LauncherLabelValue = "virt-launcher"

// NewScheme has every kind that virt-controller reads or writes.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	utilruntime.Must(cdi.AddToScheme(scheme))
	return scheme
}

// podWarnings are the events of which some tell why a launcher Pod does not start. A selector has no "or", so that the
// reasons that a busy cluster has most of are left out by name; slim drops what else is not ours.
const podWarnings = "involvedObject.kind=Pod,type=Warning," +
	"reason!=FailedScheduling,reason!=BackOff,reason!=Unhealthy,reason!=Failed,reason!=Evicted"

// slimNode keeps of a Node what is looked at: its metadata, and whether it takes Pods. Its status lists every image that it has.
func slimNode(o any) (any, error) {
	o, err := cache.TransformStripManagedFields()(o)
	if node, ok := o.(*corev1.Node); ok {
		node.Status = corev1.NodeStatus{}
	}
	return o, err
}

// slimQuota keeps of a quota what it counts, and not how much of that is used.
func slimQuota(o any) (any, error) {
	o, err := cache.TransformStripManagedFields()(o)
	if quota, ok := o.(*corev1.ResourceQuota); ok {
		quota.Status = corev1.ResourceQuotaStatus{}
	}
	return o, err
}

// slim keeps nothing of an event but its name, unless it tells why a launcher Pod does not start.
func slim(o any) (any, error) {
	e, ok := o.(*corev1.Event)
	if !ok {
		return o, nil
	}
	kept := &corev1.Event{ObjectMeta: metav1.ObjectMeta{
		Namespace: e.Namespace, Name: e.Name, UID: e.UID, ResourceVersion: e.ResourceVersion, CreationTimestamp: e.CreationTimestamp,
	}}
	if virtualmachineinstance.IsStartFailure(e) {
		kept.InvolvedObject, kept.Type, kept.Reason, kept.Message = e.InvolvedObject, e.Type, e.Reason, e.Message
		kept.LastTimestamp, kept.EventTime, kept.Series = e.LastTimestamp, e.EventTime, e.Series
	}
	return kept, nil
}

// otherSigners leaves out the requests that a cluster has most of: those of kubelets, and of people. A selector has no "or".
const otherSigners = "spec.signerName!=kubernetes.io/kubelet-serving," +
	"spec.signerName!=kubernetes.io/kube-apiserver-client-kubelet,spec.signerName!=kubernetes.io/kube-apiserver-client"

// cacheOptions keep in memory only what is ours: launcher Pods, and in the install namespace what agents publish, what
// is installed, and the Secrets with our certificates and authorities. They are also all that the Roles allow.
func cacheOptions(namespace string) cache.Options {
	labeled := func(values ...string) labels.Selector {
		requirement, err := labels.NewRequirement(v1.AppLabel, selection.In, values)
		utilruntime.Must(err) // the values are constants
		return labels.NewSelector().Add(*requirement)
	}
	here := func(selector labels.Selector) cache.ByObject {
		return cache.ByObject{Namespaces: map[string]cache.Config{namespace: {LabelSelector: selector}}}
	}
	agents := labeled(nodecapabilities.LabelValue)
	ours, err := labels.NewRequirement(v1.CreatedByLabel, selection.Exists, nil)
	utilruntime.Must(err)
	installed := labels.SelectorFromSet(labels.Set{operator.ManagedByLabel: operator.ManagedBy})
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}: {Label: labels.SelectorFromSet(labels.Set{v1.AppLabel: LauncherLabelValue})},
			// Those with the specs that VMs were started with.
			&appsv1.ControllerRevision{}: {Label: labels.NewSelector().Add(*ours)},
			&corev1.Event{}:              {Field: fields.ParseSelectorOrDie(podWarnings), Transform: slim},
			&corev1.Node{}:               {Transform: slimNode},
			&corev1.ResourceQuota{}:      {Transform: slimQuota},
			&coordinationv1.Lease{}:      here(agents),
			&corev1.ConfigMap{}:          here(labeled(nodecapabilities.LabelValue, certificate.BundleName)),
			&appsv1.DaemonSet{}:          here(installed),
			&appsv1.Deployment{}:         here(installed),
			&corev1.Service{}:            here(installed),
			&corev1.Secret{}:             here(labeled(componentName, certificate.AuthorityLabelValue)),

			&policyv1.PodDisruptionBudget{}:             here(installed),
			&certificatesv1.CertificateSigningRequest{}: {Field: fields.ParseSelectorOrDie(otherSigners)},
		},
	}
}
