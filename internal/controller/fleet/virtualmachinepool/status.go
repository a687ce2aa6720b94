// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
)

// messagePaused is the message of the condition ReplicaPaused. KubeVirt's.
const messagePaused = "Pool controller is paused"

// Reason and message of the condition Reconciling. The message is always the same, so that the condition is written
// twice for a change.
const (
	reasonUnfinished  = "ReplicasNotReady"
	messageUnfinished = "Not all VMs exist, are ready and follow the template."
)

// computeStatus computes the status from what was observed.
func computeStatus(s *Scope) {
	if s.Selector != nil { // without one nothing was counted
		s.Status.Replicas, s.Status.ReadyReplicas = int32(len(s.members)), 0
		for _, m := range s.members {
			if conditions.IsTrue(m.vm.Status.Conditions, v1.VirtualMachineReady) {
				s.Status.ReadyReplicas++
			}
		}
		s.Status.LabelSelector = s.Selector.String()
	}
	if s.Pool.Spec.Paused {
		s.set(poolv1.VirtualMachinePoolReplicaPaused, poolapi.SuccessfulPausedReason, messagePaused)
	} else {
		conditions.Remove(&s.Status.Conditions, poolv1.VirtualMachinePoolReplicaPaused)
	}
	kit.SetFailure(&s.Status.Conditions, poolv1.VirtualMachinePoolReplicaFailure, s.Failure, s.Now)
	if s.unfinished() {
		s.set(poolv1.VirtualMachinePoolReconciling, reasonUnfinished, messageUnfinished)
	} else {
		conditions.Remove(&s.Status.Conditions, poolv1.VirtualMachinePoolReconciling)
	}
}

// unfinished reports whether the pool's VMs are not yet those that the spec wants. Nothing is done for a paused pool.
// VMs that users have stopped need not be ready, and surplus VMs stay if the strategy says so.
func (s *Scope) unfinished() bool {
	if s.Pool.Spec.Paused {
		return false
	}
	return s.Failure != nil || s.pending || len(s.members) < replicas(&s.Pool.Spec) ||
		slices.ContainsFunc(s.members, func(m *member) bool {
			return m.deleting() ||
				m.shouldRun() && (!m.ready() || !conditions.IsTrue(m.vm.Status.Conditions, v1.VirtualMachineReady))
		})
}

func (s *Scope) set(kind poolv1.VirtualMachinePoolConditionType, reason, message string) {
	conditions.SetTrue(&s.Status.Conditions, kind, reason, message, metav1.NewTime(s.Now))
}

// writeStatus writes the status if it changed, and then records the events of a failure, a pause or its end.
func writeStatus(ctx context.Context, s *Scope) error {
	change := func(p *poolv1.VirtualMachinePool) { p.Status = s.Status }
	return client.IgnoreNotFound(kit.WriteStatus(ctx, s.Client, &s.Pool, change, func(before *poolv1.VirtualMachinePool) {
		kit.RecordFailure(s.Recorder, s.Pool, before.Status.Conditions, poolv1.VirtualMachinePoolReplicaFailure, s.Failure)
		wasPaused := conditions.Find(before.Status.Conditions, poolv1.VirtualMachinePoolReplicaPaused) != nil
		switch isPaused := s.Pool.Spec.Paused; {
		case isPaused && !wasPaused:
			s.record(nil, poolapi.SuccessfulPausedReason, actionPause, "Pool is paused")
		case wasPaused && !isPaused:
			s.record(nil, poolapi.SuccessfulResumeReason, actionResume, "Pool is unpaused")
		}
	}))
}
