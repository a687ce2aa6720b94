// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonSuccessfulHandOver is the reason of the event at the hand-over. KubeVirt's name.
const ReasonSuccessfulHandOver = "SuccessfulHandOver"

// handOver prepares the agent's taking over as soon as the Pod runs, and later keeps the Pod's readiness gate in
// step with the guest being paused. What the agent waits for, the phase Scheduled, comes last, with the status.
func handOver(ctx context.Context, s *Scope) error {
	if s.Pod == nil || s.End != nil || s.deleting() || finished(s.Pod) || s.Pod.DeletionTimestamp != nil {
		return nil
	}
	switch {
	case s.stage() == vmistatus.Live:
		return s.followGuest(ctx, client.MergeFromWithOptimisticLock{})
	case s.stage() != vmistatus.Preparing || !Running(s.Pod) || s.Problem != nil:
		return nil
	}
	if err := refreshClaims(ctx, s); err != nil {
		return err
	}
	if err := assignVSOCK(ctx, s); err != nil {
		return err
	}
	overhead, before := podspec.MemoryOverhead(s.VMI, s.Config), s.VMI
	err := s.patchMetadata(ctx, func(vmi *v1.VirtualMachineInstance) {
		metav1.SetMetaDataLabel(&vmi.ObjectMeta, v1.NodeNameLabel, s.Pod.Spec.NodeName)
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.MemoryOverheadAnnotationBytes,
			strconv.FormatInt(overhead.Value(), 10))
	})
	if err != nil {
		return err
	}
	// A VMI without the label, which the write above has made sure of, has a Pod that nobody has handed over yet. Else that may have
	// happened, with a cache that does not show it in the Pod: no second write then.
	var lock []client.MergeFromOption
	if s.VMI == before {
		lock = append(lock, client.MergeFromWithOptimisticLock{})
	}
	if err := s.followGuest(ctx, lock...); err != nil {
		return err
	}
	s.HandOver = true
	return nil
}

// followGuest writes what others see of the guest at its Pod, in one write: the readiness gate, which is True unless the guest is paused, so
// that Services do not send requests to a guest that stands still, and the VMI's labels about its node and its launcher.
func (s *Scope) followGuest(ctx context.Context, lock ...client.MergeFromOption) error {
	pod := s.Pod.DeepCopy()
	podspec.CopyLiveLabels(&pod.ObjectMeta, s.VMI.Labels)
	if !s.setGate(pod) && equalMaps(pod.Labels, s.Pod.Labels) {
		return nil
	}
	// A strategic merge by condition type: the kubelet's conditions are none of our business. The subresource takes labels as well.
	if err := s.Client.Status().Patch(ctx, pod, client.StrategicMergeFrom(s.Pod, lock...)); err != nil {
		return fmt.Errorf("patch readiness gate and labels of Pod %s: %w", s.Pod.Name, err)
	}
	s.Pod = pod
	return nil
}

// setGate brings the readiness gate up to date and says whether it was not.
func (s *Scope) setGate(pod *corev1.Pod) bool {
	want := corev1.PodCondition{Type: v1.VirtualMachineUnpaused, Status: corev1.ConditionTrue, Reason: "NotPaused"}
	if vmistatus.IsConditionTrue(&s.VMI.Status, v1.VirtualMachineInstancePaused) {
		want.Status, want.Reason = corev1.ConditionFalse, "Paused"
	}
	gate := podCondition(pod, want.Type)
	if gate != nil && gate.Status == want.Status {
		return false
	}
	want.LastTransitionTime = metav1.NewTime(s.Now)
	if gate != nil {
		*gate = want
	} else {
		pod.Status.Conditions = append(pod.Status.Conditions, want)
	}
	return true
}
