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

// active reports whether a VMI counts as a replica. A VMI in the phase Unknown does, because it may still run.
func active(vmi *v1.VirtualMachineInstance) bool {
	return vmi.DeletionTimestamp == nil && !finishing(vmi)
}

// finished reports whether a VMI is to be replaced.
func finished(vmi *v1.VirtualMachineInstance) bool {
	return vmi.DeletionTimestamp == nil && finishing(vmi)
}

// finishing reports whether a VMI has finished or will certainly finish because its Pod is being deleted, for example
// by a drain: a deletion cannot be undone. KubeVirt calls the latter unknown.
func finishing(vmi *v1.VirtualMachineInstance) bool {
	ready := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceReady)
	return vmi.IsFinal() ||
		ready != nil && ready.Status == corev1.ConditionFalse && ready.Reason == v1.PodTerminatingReason
}

func isReady(vmi *v1.VirtualMachineInstance) bool {
	return vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceReady)
}

// progress orders VMIs by how far they have started.
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

// sortForRemoval sorts VMIs by the order in which to delete them: not ready before ready, then by progress, then newest
// first. The name decides last, so that the order is the same in each reconciliation.
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
