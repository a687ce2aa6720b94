// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podstate reads the state of a Pod from its status. Finished, Running and Compute are for launcher Pods, the
// other functions for every Pod. It is a package of its own because virt-launcher, which imports launcherpod, does
// without Kubernetes' API types.
package podstate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Finished reports whether the Pod's launcher has ended, so that no guest runs in the Pod any more or will. Launcher
// Pods have the restart policy Never. A Pod that is being deleted is not finished: its guest may run until the end of
// the grace period, and longer on a node that does not respond.
func Finished(pod *corev1.Pod) bool {
	if Terminal(pod) {
		return true
	}
	compute := Compute(pod)
	return compute != nil && compute.State.Terminated != nil
}

// Terminal reports whether every container of the Pod has ended. Unlike Finished it is false while only the launcher
// has ended: virt-handler keeps what it made for the Pod until nothing in it runs, and its cache selects Pods by the
// phase too.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// NotTerminal selects the Pods that are not Terminal.
var NotTerminal = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// TerminalOrDeleted reports whether an eviction of the Pod changes nothing: the Pod is Terminal, or the kubelet is
// stopping it already. Only an eviction may count a deleted Pod as ended: its guest may still run and write to its
// disks.
func TerminalOrDeleted(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil || Terminal(pod)
}

// Running reports whether virt-launcher runs on a node.
func Running(pod *corev1.Pod) bool {
	compute := Compute(pod)
	return pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning && compute != nil &&
		compute.State.Running != nil
}

// Compute returns the status of the container with virt-launcher, or nil.
func Compute(pod *corev1.Pod) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == launcherpod.ComputeContainer {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// ComputeContainer returns the container with virt-launcher in the Pod's spec, or nil.
func ComputeContainer(pod *corev1.Pod) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == launcherpod.ComputeContainer {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

// Condition returns the Pod's condition of a type, or nil.
func Condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// Ready reports whether the Pod is ready.
func Ready(pod *corev1.Pod) bool {
	ready := Condition(pod, corev1.PodReady)
	return ready != nil && ready.Status == corev1.ConditionTrue
}
