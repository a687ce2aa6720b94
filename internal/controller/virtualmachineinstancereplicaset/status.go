// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

type (
	condition     = v1.VirtualMachineInstanceReplicaSetCondition
	conditionType = v1.VirtualMachineInstanceReplicaSetConditionType
)

// What the condition ReplicaPaused says. KubeVirt's words.
const (
	reasonPaused  = "Paused"
	messagePaused = "Controller got paused"
)

// computeStatus brings the status to what is seen now.
func computeStatus(s *Scope) {
	if s.Selector != nil { // without one nothing was counted
		counted := s.pick(active)
		s.Status.Replicas, s.Status.ReadyReplicas = int32(len(counted)), 0
		for _, vmi := range counted {
			if isReady(vmi) {
				s.Status.ReadyReplicas++
			}
		}
		s.Status.LabelSelector = s.Selector.String()
	}
	paused, failed := v1.VirtualMachineInstanceReplicaSetReplicaPaused, v1.VirtualMachineInstanceReplicaSetReplicaFailure
	if s.Set.Spec.Paused {
		s.set(paused, reasonPaused, messagePaused)
	} else {
		s.unset(paused)
	}
	if s.Failure != nil {
		s.set(failed, s.Failure.Reason, s.Failure.Message)
	} else {
		s.unset(failed)
	}
}

// set makes a condition true and keeps its time if it was.
func (s *Scope) set(kind conditionType, reason, message string) {
	want := condition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(s.Now),
	}
	known := findCondition(s.Status.Conditions, kind)
	if known == nil {
		s.Status.Conditions = append(s.Status.Conditions, want)
		return
	}
	if known.Status == want.Status {
		want.LastProbeTime, want.LastTransitionTime = known.LastProbeTime, known.LastTransitionTime
	}
	*known = want
}

func (s *Scope) unset(kind conditionType) {
	s.Status.Conditions = slices.DeleteFunc(s.Status.Conditions, func(c condition) bool { return c.Type == kind })
}

func findCondition(conditions []condition, kind conditionType) *condition {
	for i := range conditions {
		if conditions[i].Type == kind {
			return &conditions[i]
		}
	}
	return nil
}

// writeStatus writes the status if it changed, and then tells of a pause that began or ended.
func writeStatus(ctx context.Context, s *Scope) error {
	before := &s.Set.Status
	if equality.Semantic.DeepEqual(before, &s.Status) {
		return nil
	}
	wasPaused := findCondition(before.Conditions, v1.VirtualMachineInstanceReplicaSetReplicaPaused) != nil
	changed := s.Set.DeepCopy()
	changed.Status = s.Status
	lock := client.MergeFromWithOptions(s.Set, client.MergeFromWithOptimisticLock{})
	switch err := s.Client.Status().Patch(ctx, changed, lock); {
	case apierrors.IsNotFound(err):
		return nil // the set is gone, and nobody is left to read it
	case err != nil:
		return fmt.Errorf("patch status of VirtualMachineInstanceReplicaSet %s: %w", client.ObjectKeyFromObject(s.Set), err)
	}
	s.reportFailure(before)
	s.Set = changed
	switch isPaused := s.Set.Spec.Paused; {
	case isPaused && !wasPaused:
		s.tell(nil, normal, ReasonSuccessfulPaused, actionPause, "Paused")
	case wasPaused && !isPaused:
		s.tell(nil, normal, ReasonSuccessfulResumed, actionResume, "Resumed")
	}
	return nil
}
