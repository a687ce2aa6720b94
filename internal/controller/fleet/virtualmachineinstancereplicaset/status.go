// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
)

// Reason and message of the condition ReplicaPaused. KubeVirt's words.
const (
	reasonPaused  = "Paused"
	messagePaused = "Controller got paused"
)

// reasonNotReady is the reason of the condition Reconciling.
const reasonNotReady = "ReplicasNotReady"

// computeStatus computes the status from what was observed.
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
		conditions.Remove(&s.Status.Conditions, paused)
	}
	kit.SetFailure(&s.Status.Conditions, failed, s.Failure, s.Now)
	if why := s.unfinished(); why != "" {
		s.set(v1.VirtualMachineInstanceReplicaSetReconciling, reasonNotReady, why)
	} else {
		conditions.Remove(&s.Status.Conditions, v1.VirtualMachineInstanceReplicaSetReconciling)
	}
}

// unfinished returns why the set's VMIs are not yet those that the spec wants, or "". Nothing is done for a paused set.
func (s *Scope) unfinished() string {
	wanted := int32(s.wanted())
	switch {
	case s.Set.Spec.Paused:
		return ""
	case s.Failure != nil:
		return s.Failure.Message
	case s.Status.Replicas != wanted:
		return fmt.Sprintf("there are %d replicas of %d", s.Status.Replicas, wanted)
	case s.Status.ReadyReplicas != wanted:
		return fmt.Sprintf("%d of %d replicas are ready", s.Status.ReadyReplicas, wanted)
	}
	return ""
}

func (s *Scope) set(kind v1.VirtualMachineInstanceReplicaSetConditionType, reason, message string) {
	conditions.SetTrue(&s.Status.Conditions, kind, reason, message, metav1.NewTime(s.Now))
}

// writeStatus writes the status if it changed, and then records the events of a failure, a pause or its end.
func writeStatus(ctx context.Context, s *Scope) error {
	change := func(set *v1.VirtualMachineInstanceReplicaSet) { set.Status = s.Status }
	return client.IgnoreNotFound(
		kit.WriteStatus(ctx, s.Client, &s.Set, change, func(before *v1.VirtualMachineInstanceReplicaSet) {
			kit.RecordFailure(s.Recorder, s.Set, before.Status.Conditions, v1.VirtualMachineInstanceReplicaSetReplicaFailure,
				s.Failure)
			wasPaused := conditions.Find(before.Status.Conditions, v1.VirtualMachineInstanceReplicaSetReplicaPaused) != nil
			switch isPaused := s.Set.Spec.Paused; {
			case isPaused && !wasPaused:
				s.record(nil, ReasonSuccessfulPaused, actionPause, "Paused")
			case wasPaused && !isPaused:
				s.record(nil, ReasonSuccessfulResumed, actionResume, "Resumed")
			}
		}))
}
