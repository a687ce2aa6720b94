// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// FindCondition returns the condition of a type as it lies in the status, or nil.
func FindCondition(
	status *v1.VirtualMachineInstanceStatus, kind v1.VirtualMachineInstanceConditionType,
) *v1.VirtualMachineInstanceCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == kind {
			return &status.Conditions[i]
		}
	}
	return nil
}

// IsConditionTrue says that there is a condition of the type and that it is True.
func IsConditionTrue(status *v1.VirtualMachineInstanceStatus, kind v1.VirtualMachineInstanceConditionType) bool {
	condition := FindCondition(status, kind)
	return condition != nil && condition.Status == corev1.ConditionTrue
}

// Lost says that nothing of the VMI's node answers, the kubelet neither. What the agent said last may be wrong by now.
func Lost(status *v1.VirtualMachineInstanceStatus) bool {
	silent := FindCondition(status, v1.VirtualMachineInstanceNodeUnresponsive)
	return silent != nil && silent.Status == corev1.ConditionTrue && silent.Reason != v1.VirtualMachineInstanceReasonAgentSilent
}

// IsGoneOrLost says that there is no VMI of a name, or that it is Lost: migrations of it take no slot.
func IsGoneOrLost(ctx context.Context, reader client.Reader, key client.ObjectKey) (bool, error) {
	vmi := &v1.VirtualMachineInstance{}
	if err := reader.Get(ctx, key, vmi); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	return Lost(&vmi.Status), nil
}

// SetCondition puts a condition into the status and says whether that changed anything. The transition time is
// now when the condition is new or turns its status, and stays when only reason or message differ. A condition
// that is there already in the same words is left alone. The times of the argument are ignored.
func SetCondition(
	status *v1.VirtualMachineInstanceStatus, condition v1.VirtualMachineInstanceCondition, now metav1.Time,
) bool {
	condition.LastProbeTime = metav1.Time{}
	condition.LastTransitionTime = now
	current := FindCondition(status, condition.Type)
	if current == nil {
		status.Conditions = append(status.Conditions, condition)
		return true
	}
	if current.Status == condition.Status {
		condition.LastProbeTime = current.LastProbeTime
		condition.LastTransitionTime = current.LastTransitionTime
	}
	if *current == condition {
		return false
	}
	*current = condition
	return true
}

// RemoveCondition takes the condition of a type out of the status and says whether there was one.
func RemoveCondition(status *v1.VirtualMachineInstanceStatus, kind v1.VirtualMachineInstanceConditionType) bool {
	before := len(status.Conditions)
	status.Conditions = slices.DeleteFunc(status.Conditions, func(c v1.VirtualMachineInstanceCondition) bool {
		return c.Type == kind
	})
	return len(status.Conditions) != before
}

// SetPhase moves the status to a phase, stamps the transition and says whether that changed anything. A phase that
// was passed before keeps its first stamp.
func SetPhase(
	status *v1.VirtualMachineInstanceStatus, phase v1.VirtualMachineInstancePhase, at metav1.Time,
) bool {
	changed := status.Phase != phase
	status.Phase = phase
	return StampPhase(status, phase, at) || changed
}

// StampPhase notes when a phase was entered, without moving to it, and says whether it did. It serves the
// phases that are passed without a write of their own.
func StampPhase(
	status *v1.VirtualMachineInstanceStatus, phase v1.VirtualMachineInstancePhase, at metav1.Time,
) bool {
	for _, stamp := range status.PhaseTransitionTimestamps {
		if stamp.Phase == phase {
			return false
		}
	}
	status.PhaseTransitionTimestamps = append(status.PhaseTransitionTimestamps,
		v1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: phase, PhaseTransitionTimestamp: at})
	return true
}

// HasPassed says that the VMI is or was in a phase.
func HasPassed(status *v1.VirtualMachineInstanceStatus, phase v1.VirtualMachineInstancePhase) bool {
	if status.Phase == phase {
		return true
	}
	for _, stamp := range status.PhaseTransitionTimestamps {
		if stamp.Phase == phase {
			return true
		}
	}
	return false
}
