// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package eviction

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of a launcher Pod that is being evicted.
const (
	// InProgressAnnotation informs the descheduler that an eviction that it requested is in progress. Its value is KubeVirt's:
	// kubevirt/kubevirt pkg/virt-controller/watch/descheduler.
	InProgressAnnotation = "descheduler.alpha.kubernetes.io/eviction-in-progress"
	inProgressValue      = "kubevirt"
	// DrainAnnotation means that the Pod's node was unschedulable when the Pod was evicted. This is a drain, which ends when the node is
	// schedulable again. Other evictions, such as the descheduler's, do not depend on the node. KubeVirt does not have this annotation.
	DrainAnnotation = "kubevirt.io/evicted-by-drain"
)

// SourceDescheduler is the value of the annotation kubevirt.io/eviction-source of a VMI that the descheduler evicts. Migrations for drains
// have priority over its migration.
const SourceDescheduler = "descheduler"

// The descheduler identifies itself in its evictions. Source: kubernetes-sigs/descheduler pkg/descheduler/evictions.
const (
	requestedByAnnotation = "requested-by"
	deschedulerName       = "sigs.k8s.io/descheduler"
)

// SourceOf returns SourceDescheduler if an eviction has the descheduler's annotations, and otherwise an empty string.
func SourceOf(annotations map[string]string) string {
	if annotations[requestedByAnnotation] == deschedulerName {
		return SourceDescheduler
	}
	return ""
}

// Annotate sets the annotations of a Pod that is evicted. drained reports whether this is because of a drain of its node.
func Annotate(pod *metav1.ObjectMeta, drained bool) {
	metav1.SetMetaDataAnnotation(pod, InProgressAnnotation, inProgressValue)
	if drained {
		metav1.SetMetaDataAnnotation(pod, DrainAnnotation, "true")
	} else {
		delete(pod.Annotations, DrainAnnotation)
	}
}

// Forget removes the annotations.
func Forget(pod *metav1.ObjectMeta) {
	delete(pod.Annotations, InProgressAnnotation)
	delete(pod.Annotations, DrainAnnotation)
}

// IsAnnotated reports whether a Pod has any of the annotations.
func IsAnnotated(pod *metav1.ObjectMeta) bool {
	_, inProgress := pod.Annotations[InProgressAnnotation]
	return inProgress || ByDrain(pod)
}

// ByDrain reports whether a Pod was evicted by a drain of its node.
func ByDrain(pod *metav1.ObjectMeta) bool { return pod.Annotations[DrainAnnotation] == "true" }

// HasTaint reports whether a node has the deprecated taint that requests an evacuation.
func HasTaint(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == corev1.TaintEffectNoSchedule })
}
