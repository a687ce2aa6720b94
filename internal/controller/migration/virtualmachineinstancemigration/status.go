// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// phases contains the phases in the order in which a migration enters them. It never returns to an earlier one.
var phases = []v1.VirtualMachineInstanceMigrationPhase{
	v1.MigrationPhaseUnset, v1.MigrationPending, v1.MigrationScheduling, v1.MigrationScheduled,
	v1.MigrationPreparingTarget, v1.MigrationTargetReady, v1.MigrationRunning, v1.MigrationSucceeded,
}

// Reasons of the conditions.
const (
	reasonDeleted = "MigrationDeleted"
	reasonQuota   = "ExceededQuota"
	reasonRunning = "MigrationInProgress"
	reasonFailed  = "MigrationFailed"
	reasonUtility = "UtilityVolumesPresent"
)

// passed reports whether the migration is in this phase or a later one.
func (s *Scope) passed(phase v1.VirtualMachineInstanceMigrationPhase) bool {
	return slices.Index(phases, s.Migration.Status.Phase) >= slices.Index(phases, phase)
}

// reached returns the phase that follows from the VMI and the target's Pod.
func (s *Scope) reached() v1.VirtualMachineInstanceMigrationPhase {
	switch m := s.state(); {
	case m != nil && m.Completed && !m.Failed && (!s.changing() || s.ended()):
		return v1.MigrationSucceeded
	case m != nil && (m.StartTimestamp != nil || m.Completed):
		return v1.MigrationRunning
	case m != nil && m.TargetNodeAddress != "":
		return v1.MigrationTargetReady
	case m != nil:
		return v1.MigrationPreparingTarget
	case s.Target != nil && podstate.Running(s.Target):
		return v1.MigrationScheduled
	case s.Target != nil:
		return v1.MigrationScheduling
	default:
		return v1.MigrationPending
	}
}

// changing reports whether a change of the VMI for which the migration was created has not been applied yet.
func (s *Scope) changing() bool {
	return vmistatus.IsConditionTrue(&s.VMI.Status, v1.VirtualMachineInstanceMigrationRequired)
}

// computeStatus computes the status.
func computeStatus(s *Scope, status *v1.VirtualMachineInstanceMigrationStatus) {
	if m := s.state(); m != nil {
		status.MigrationState = m.DeepCopy()
	} else if s.Target != nil && status.MigrationState == nil && s.Own != nil {
		status.MigrationState = &v1.VirtualMachineInstanceMigrationState{
			SourceNode: s.VMI.Status.NodeName, SourcePod: s.Own.Name,
			SourcePersistentStatePVCName: podspec.StateClaim(s.Own), TargetPersistentStatePVCName: podspec.StateClaim(s.Target),
		}
	}
	if s.deleting() {
		s.set(status, v1.VirtualMachineInstanceMigrationAbortRequested, reasonDeleted,
			"The migration was deleted before it was over.")
	}
	switch quota := v1.VirtualMachineInstanceMigrationRejectedByResourceQuota; {
	case s.Rejected:
		s.set(status, quota, reasonQuota, s.Message)
	case s.Target != nil || s.Failure != "":
		conditions.Remove(&status.Conditions, quota)
	}
	if utility := v1.VirtualMachineInstanceMigrationBlockedByUtilityVolumes; s.UtilityVolumes {
		s.set(status, utility, reasonUtility, "The migration waits until the guest's utility volumes are detached.")
	} else {
		conditions.Remove(&status.Conditions, utility)
	}
	if s.Failure != "" {
		s.enter(status, v1.MigrationFailed)
		s.set(status, v1.VirtualMachineInstanceMigrationStalled, reasonFailed, s.Failure)
	} else {
		from, to := slices.Index(phases, status.Phase), slices.Index(phases, s.reached())
		for i := from + 1; i <= to; i++ {
			s.enter(status, phases[i])
		}
	}
	if status.Phase == v1.MigrationSucceeded || status.Phase == v1.MigrationFailed {
		conditions.Remove(&status.Conditions, v1.VirtualMachineInstanceMigrationReconciling)
	} else {
		s.set(status, v1.VirtualMachineInstanceMigrationReconciling, reasonRunning, "The migration has not ended.")
	}
}

// enter sets the phase and its timestamp.
func (s *Scope) enter(status *v1.VirtualMachineInstanceMigrationStatus, phase v1.VirtualMachineInstanceMigrationPhase) {
	status.Phase = phase
	status.PhaseTransitionTimestamps = append(status.PhaseTransitionTimestamps,
		v1.VirtualMachineInstanceMigrationPhaseTransitionTimestamp{
			Phase: phase, PhaseTransitionTimestamp: metav1.NewTime(s.Now),
		})
}

// set sets a condition to true. A condition that is already true is not changed, because the numbers in a quota's
// message change frequently.
func (s *Scope) set(
	status *v1.VirtualMachineInstanceMigrationStatus, kind v1.VirtualMachineInstanceMigrationConditionType, reason,
	message string,
) {
	if conditions.IsTrue(status.Conditions, kind) {
		return
	}
	conditions.Set(&status.Conditions, v1.VirtualMachineInstanceMigrationCondition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message,
		LastProbeTime: metav1.NewTime(s.Now), LastTransitionTime: metav1.NewTime(s.Now),
	})
}

// writeStatus writes the status if it changed, and then records an event if the migration has ended.
func writeStatus(ctx context.Context, s *Scope) error {
	compute := func(m *v1.VirtualMachineInstanceMigration) { computeStatus(s, &m.Status) }
	return client.IgnoreNotFound(
		kit.WriteStatus(ctx, s.Client, &s.Migration, compute, func(*v1.VirtualMachineInstanceMigration) {
			switch s.Migration.Status.Phase {
			case v1.MigrationSucceeded:
				s.event(corev1.EventTypeNormal, ReasonSuccessfulMigration, actionEnd, "Source node reported migration succeeded")
			case v1.MigrationFailed:
				s.event(corev1.EventTypeWarning, ReasonFailedMigration, actionEnd, "%s", s.Failure)
			}
		}))
}
