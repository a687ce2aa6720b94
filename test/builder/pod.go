// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package builder

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// PodStatus builds the status of a launcher Pod.
type PodStatus struct{ status corev1.PodStatus }

// MakePodStatus returns a builder that starts with an unscheduled Pod.
func MakePodStatus() *PodStatus {
	return &PodStatus{status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable}}
}

// Obj returns a copy of the status.
func (b *PodStatus) Obj() corev1.PodStatus { return *b.status.DeepCopy() }

// Unschedulable sets the condition of a Pod for which the scheduler found no node.
func (b *PodStatus) Unschedulable(message string) *PodStatus {
	b.status.Conditions = append(b.status.Conditions, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
	})
	return b
}

// Waiting sets why the compute container does not run yet.
func (b *PodStatus) Waiting(reason, message string) *PodStatus {
	return b.compute(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
}

// Running sets a running compute container.
func (b *PodStatus) Running() *PodStatus {
	b.status.Phase = corev1.PodRunning
	b.compute(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	// The API server takes a kubelet that reports none for one that cannot resize Pods.
	b.status.ContainerStatuses[0].Resources = &corev1.ResourceRequirements{}
	return b
}

// Terminated sets a terminated compute container.
func (b *PodStatus) Terminated(exitCode int32, reason, message string) *PodStatus {
	b.status.Phase = corev1.PodSucceeded
	if exitCode != 0 {
		b.status.Phase = corev1.PodFailed
	}
	return b.compute(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: exitCode, Reason: reason, Message: message,
	}})
}

// LauncherTerminated sets a terminated compute container, while another container of the Pod runs.
func (b *PodStatus) LauncherTerminated(exitCode int32) *PodStatus {
	b.Terminated(exitCode, "Error", "")
	b.status.Phase = corev1.PodRunning
	return b
}

// Evicted sets the status of a Pod that the kubelet evicted, without a container status.
func (b *PodStatus) Evicted(message string) *PodStatus {
	return b.Refused("Evicted", message)
}

// Refused sets the status of a Pod that the kubelet did not admit.
func (b *PodStatus) Refused(reason, message string) *PodStatus {
	b.status.Phase, b.status.Reason, b.status.Message = corev1.PodFailed, reason, message
	return b
}

func (b *PodStatus) compute(state corev1.ContainerState) *PodStatus {
	b.status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: launcherpod.ComputeContainer, State: state, Image: "launcher", ImageID: "launcher",
	}}
	return b
}

// MakePodWithClaims returns a Pod without containers that uses claims.
func MakePodWithClaims(namespace, name string, claims ...string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}})
	}
	return pod
}
