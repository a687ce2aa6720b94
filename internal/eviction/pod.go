// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package eviction

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of a launcher Pod that is being evicted.
const (
	// InProgressAnnotation tells the descheduler that somebody takes care of an eviction that it asked for. Its value is
	// KubeVirt's: kubevirt/kubevirt pkg/virt-controller/watch/descheduler.
	InProgressAnnotation = "descheduler.alpha.kubernetes.io/eviction-in-progress"
	inProgressValue      = "kubevirt"
	// DrainAnnotation is ours. It says that the Pod's node took no new Pods when the Pod was evicted: a drain, which is off when the
	// node takes Pods again. Other evictions, of the descheduler for example, say nothing about the node.
	DrainAnnotation = "kubevirt.io/evicted-by-drain"
)

// SourceDescheduler is the value of the annotation kubevirt.io/eviction-source of a VMI that the descheduler evicts: its migration waits
// for those of drains.
const SourceDescheduler = "descheduler"

// The descheduler says in its evictions who it is. Source: kubernetes-sigs/descheduler pkg/descheduler/evictions.
const (
	requestedByAnnotation = "requested-by"
	deschedulerName       = "sigs.k8s.io/descheduler"
)

// SourceOf is who asks for an eviction, by its annotations. Nothing means somebody whose evictions do not wait.
func SourceOf(annotations map[string]string) string {
	if annotations[requestedByAnnotation] == deschedulerName {
		return SourceDescheduler
	}
	return ""
}

// Annotate gives a Pod the annotations of one that is evicted, by a drain of its node or not.
func Annotate(pod *metav1.ObjectMeta, drained bool) {
	metav1.SetMetaDataAnnotation(pod, InProgressAnnotation, inProgressValue)
	if drained {
		metav1.SetMetaDataAnnotation(pod, DrainAnnotation, "true")
	} else {
		delete(pod.Annotations, DrainAnnotation)
	}
}

// Forget takes the annotations away from a Pod that may stay.
func Forget(pod *metav1.ObjectMeta) {
	delete(pod.Annotations, InProgressAnnotation)
	delete(pod.Annotations, DrainAnnotation)
}

// IsAnnotated says that a Pod has annotations of one that is evicted.
func IsAnnotated(pod *metav1.ObjectMeta) bool {
	_, inProgress := pod.Annotations[InProgressAnnotation]
	return inProgress || ByDrain(pod)
}

// ByDrain says that a Pod was evicted by a drain of its node.
func ByDrain(pod *metav1.ObjectMeta) bool { return pod.Annotations[DrainAnnotation] == "true" }

// HasTaint says that a Node asks by the deprecated taint that its guests leave.
func HasTaint(node *corev1.Node, key string) bool {
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].Key == key && node.Spec.Taints[i].Effect == corev1.TaintEffectNoSchedule {
			return true
		}
	}
	return false
}
