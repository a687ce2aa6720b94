// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package eviction

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// StrategyOf returns the strategy of a VMI: its own, or the default.
func StrategyOf(vmi *v1.VirtualMachineInstance, fallback v1.EvictionStrategy) v1.EvictionStrategy {
	if vmi.Spec.EvictionStrategy != nil {
		return *vmi.Spec.EvictionStrategy
	}
	return fallback
}

// Migrates reports whether virt-controller migrates a VMI of the strategy when its Pod is evicted.
func Migrates(strategy v1.EvictionStrategy) bool {
	return strategy == v1.EvictionStrategyLiveMigrate || strategy == v1.EvictionStrategyLiveMigrateIfPossible
}

// Obstacle explains why a VMI cannot migrate now; empty if it can.
func Obstacle(vmi *v1.VirtualMachineInstance, liveMigration bool) string {
	condition := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceIsMigratable)
	switch {
	case !liveMigration:
		return "this installation cannot migrate guests"
	case condition == nil && !vmi.IsRunning():
		return fmt.Sprintf("its guest does not run yet (phase %s)", phaseOf(vmi))
	case condition == nil:
		return fmt.Sprintf("the agent of node %s has not reported yet whether it can", vmi.Status.NodeName)
	case condition.Status == corev1.ConditionTrue:
		return ""
	case condition.Message != "":
		return condition.Message
	default:
		return fmt.Sprintf("its condition %s is %s (%s)", condition.Type, condition.Status, condition.Reason)
	}
}

func phaseOf(vmi *v1.VirtualMachineInstance) v1.VirtualMachineInstancePhase {
	if vmi.Status.Phase == v1.VmPhaseUnset {
		return v1.Pending
	}
	return vmi.Status.Phase
}

// IsMarked reports whether a VMI is marked for evacuation of its current node. A mark for another node is stale.
func IsMarked(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Status.EvacuationNodeName != "" && vmi.Status.EvacuationNodeName == vmi.Status.NodeName
}

// Mark marks a VMI for evacuation of its node. The condition's transition time is the time of the request.
func Mark(status *v1.VirtualMachineInstanceStatus, now metav1.Time) {
	// The condition is removed first, so that a new request has a new time even if there is a stale mark.
	vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceEvictionRequested)
	status.EvacuationNodeName = status.NodeName
	Observe(status, now)
}

// Unmark removes the mark.
func Unmark(status *v1.VirtualMachineInstanceStatus) {
	status.EvacuationNodeName = ""
	Observe(status, metav1.Time{})
}

// Observe sets the condition EvictionRequested according to the mark, which users may also set or remove.
func Observe(status *v1.VirtualMachineInstanceStatus, now metav1.Time) {
	if status.EvacuationNodeName == "" {
		vmistatus.RemoveCondition(status, v1.VirtualMachineInstanceEvictionRequested)
		return
	}
	vmistatus.SetCondition(status, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceEvictionRequested, Status: corev1.ConditionTrue,
		Reason:  v1.VirtualMachineInstanceReasonEvictionRequested,
		Message: fmt.Sprintf("An eviction of the launcher Pod on node %s was requested: the guest has to leave the node.", status.EvacuationNodeName),
	}, now)
}

// MarkedAt returns when the evacuation was requested. KubeVirt's API has no other field for it.
func MarkedAt(vmi *v1.VirtualMachineInstance) metav1.Time {
	condition := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceEvictionRequested)
	if condition == nil {
		return metav1.Time{}
	}
	return condition.LastTransitionTime
}
