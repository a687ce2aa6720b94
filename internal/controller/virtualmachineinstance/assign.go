// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonSuccessfulHandOver is the reason of the event when a Pod was assigned. KubeVirt's name.
const ReasonSuccessfulHandOver = "SuccessfulHandOver"

// assignPod prepares the assignment of the Pod to its node's agent as soon as the Pod runs. The agent waits for the
// phase Scheduled, which is written with the status. Once the VMI is live, assignPod only updates the Pod.
func (s *scope) assignPod(ctx context.Context) error {
	if s.pod == nil || s.final != nil || s.deleting() || podstate.Finished(s.pod) || s.pod.DeletionTimestamp != nil {
		return nil
	}
	switch {
	case s.stage() == vmistatus.Live:
		return s.syncAssignedPod(ctx, client.MergeFromWithOptimisticLock{})
	case s.stage() != vmistatus.Preparing || !podstate.Running(s.pod) || s.problem != nil:
		return nil
	}
	if err := s.refreshClaims(ctx); err != nil {
		return err
	}
	if err := s.assignVSOCK(ctx); err != nil {
		return err
	}
	if err := s.decideTracking(ctx); err != nil {
		return err
	}
	overhead, read := podspec.MemoryOverhead(s.vmi, s.podConfig), s.vmi
	err := s.patchMetadata(ctx, func(vmi *v1.VirtualMachineInstance) {
		metav1.SetMetaDataLabel(&vmi.ObjectMeta, v1.NodeNameLabel, s.pod.Spec.NodeName)
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.MemoryOverheadAnnotationBytes,
			strconv.FormatInt(overhead.Value(), 10))
	})
	if err != nil {
		return err
	}
	// If the VMI had no label until now, its Pod was not written either. Otherwise it may have been, and a stale cache may
	// not show it: the lock makes the second write fail.
	var lock []client.MergeFromOption
	if s.vmi == read {
		lock = append(lock, client.MergeFromWithOptimisticLock{})
	}
	if err := s.syncAssignedPod(ctx, lock...); err != nil {
		return err
	}
	s.assigned = true
	return nil
}

// syncAssignedPod patches the labels of the Pod, and its readiness gate. The gate is False while the guest is paused,
// so that Services send it no requests.
func (s *scope) syncAssignedPod(ctx context.Context, lock ...client.MergeFromOption) error {
	pod := s.pod.DeepCopy()
	podspec.CopyLiveLabels(&pod.ObjectMeta, s.vmi.Labels)
	if !s.setReadinessGate(pod) && maps.Equal(pod.Labels, s.pod.Labels) {
		return nil
	}
	// A strategic merge keeps the kubelet's conditions. The status subresource accepts labels as well.
	if err := s.client.Status().Patch(ctx, pod, client.StrategicMergeFrom(s.pod, lock...)); err != nil {
		return fmt.Errorf("patch readiness gate and labels of Pod %s: %w", s.pod.Name, err)
	}
	s.pod = pod
	return nil
}

// setReadinessGate updates the readiness gate and reports whether that changed it.
func (s *scope) setReadinessGate(pod *corev1.Pod) bool {
	want := corev1.PodCondition{Type: v1.VirtualMachineUnpaused, Status: corev1.ConditionTrue, Reason: "NotPaused"}
	if vmistatus.IsConditionTrue(&s.vmi.Status, v1.VirtualMachineInstancePaused) {
		want.Status, want.Reason = corev1.ConditionFalse, "Paused"
	}
	gate := podstate.Condition(pod, want.Type)
	if gate != nil && gate.Status == want.Status {
		return false
	}
	want.LastTransitionTime = metav1.NewTime(s.now)
	if gate != nil {
		*gate = want
	} else {
		pod.Status.Conditions = append(pod.Status.Conditions, want)
	}
	return true
}
