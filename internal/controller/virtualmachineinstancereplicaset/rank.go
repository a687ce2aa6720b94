// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// active says that a VMI counts. One whose phase is Unknown does: nobody has heard from it, which is not to say that it
// is gone.
func active(vmi *v1.VirtualMachineInstance) bool {
	return vmi.DeletionTimestamp == nil && !over(vmi)
}

// finished says that a VMI is to be replaced.
func finished(vmi *v1.VirtualMachineInstance) bool {
	return vmi.DeletionTimestamp == nil && over(vmi)
}

// over says that a VMI has ended, or cannot but end: its Pod is being deleted, by a drain for example, and no deletion is
// ever taken back. KubeVirt calls the latter unknown.
func over(vmi *v1.VirtualMachineInstance) bool {
	ready := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceReady)
	return vmi.IsFinal() ||
		ready != nil && ready.Status == corev1.ConditionFalse && ready.Reason == v1.PodTerminatingReason
}

func isReady(vmi *v1.VirtualMachineInstance) bool {
	return vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceReady)
}

// progress is how far a VMI has come.
func progress(vmi *v1.VirtualMachineInstance) int {
	switch vmi.Status.Phase {
	case v1.VmPhaseUnset, v1.Pending:
		return 0
	case v1.Scheduling:
		return 1
	case v1.Scheduled:
		return 2
	default:
		return 3
	}
}

// sortForRemoval puts those first that are missed least: those that are not ready, of them those that have come least
// far, and of equals the newest. The name decides last, so that each reconciliation of the same VMIs has the same order.
func sortForRemoval(vmis []*v1.VirtualMachineInstance) {
	slices.SortFunc(vmis, func(a, b *v1.VirtualMachineInstance) int {
		return cmp.Or(
			cmp.Compare(rankReady(a), rankReady(b)),
			cmp.Compare(progress(a), progress(b)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
}

func rankReady(vmi *v1.VirtualMachineInstance) int {
	if isReady(vmi) {
		return 1
	}
	return 0
}
