// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/api/cdi"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/storage/datavolume"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of a VMI's condition Synchronized that have a printable status of their own. KubeVirt's names.
const (
	reasonPVCNotFound      = "FailedPvcNotFound"
	reasonErrImagePull     = "ErrImagePull"
	reasonImagePullBackOff = "ImagePullBackOff"
)

// printable is a printable status and the condition under which it applies.
type printable struct {
	status  v1.VirtualMachinePrintableStatus
	applies func(s *Scope) bool
}

// printables are in KubeVirt's order: the first one that applies is shown.
// Source: kubevirt/kubevirt pkg/virt-controller/watch/vm, setPrintableStatus.
var printables = []printable{
	{v1.VirtualMachineStatusTerminating, func(s *Scope) bool { return s.VM.DeletionTimestamp != nil }},
	{v1.VirtualMachineStatusStopping, func(s *Scope) bool {
		return alive(s) && (s.VMI.DeletionTimestamp != nil || stopRequested(s))
	}},
	{v1.VirtualMachineStatusMigrating, func(s *Scope) bool { return alive(s) && transfers(s.VMI) }},
	{v1.VirtualMachineStatusPaused, func(s *Scope) bool {
		return alive(s) && vmistatus.IsConditionTrue(&s.VMI.Status, v1.VirtualMachineInstancePaused)
	}},
	{v1.VirtualMachineStatusRunning, func(s *Scope) bool { return alive(s) && s.VMI.IsRunning() }},
	{v1.VirtualMachineStatusPvcNotFound, outOfSync(reasonPVCNotFound)},
	{v1.VirtualMachineStatusDataVolumeError, anyDataVolume(func(dv *cdi.DataVolume) bool { return datavolume.Problem(dv) != "" })},
	{v1.VirtualMachineStatusUnschedulable, func(s *Scope) bool {
		if !alive(s) {
			return false
		}
		scheduled := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstancePodScheduled)
		return scheduled != nil && scheduled.Status == corev1.ConditionFalse &&
			scheduled.Reason == corev1.PodReasonUnschedulable
	}},
	{v1.VirtualMachineStatusProvisioning, anyDataVolume(datavolume.Provisioning)},
	{v1.VirtualMachineStatusWaitingForVolumeBinding, func(s *Scope) bool {
		return (s.starting || alive(s)) && unbound(s)
	}},
	{v1.VirtualMachineStatusErrImagePull, outOfSync(reasonErrImagePull)},
	{v1.VirtualMachineStatusImagePullBackOff, outOfSync(reasonImagePullBackOff)},
	{v1.VirtualMachineStatusStarting, func(s *Scope) bool {
		return alive(s) && (s.VMI.IsUnprocessed() || s.VMI.IsScheduled() || s.VMI.Status.Phase == v1.Scheduling)
	}},
	{v1.VirtualMachineStatusCrashLoopBackOff, func(s *Scope) bool {
		return !alive(s) && s.Status.StartFailure != nil && s.Status.StartFailure.RetryAfterTimestamp != nil
	}},
	{v1.VirtualMachineStatusStopped, func(s *Scope) bool { return !alive(s) }},
}

func printableStatus(s *Scope) v1.VirtualMachinePrintableStatus {
	for _, p := range printables {
		if p.applies(s) {
			return p.status
		}
	}
	return v1.VirtualMachineStatusUnknown
}

// alive reports whether there is an instance that has not ended.
func alive(s *Scope) bool { return s.VMI != nil && !s.VMI.IsFinal() }

// transfers reports whether a migration of the guest has started and not ended.
func transfers(vmi *v1.VirtualMachineInstance) bool {
	state := vmi.Status.MigrationState
	return state != nil && state.StartTimestamp != nil && !state.Completed && !state.Failed
}

func outOfSync(reason string) func(*Scope) bool {
	return func(s *Scope) bool {
		if !alive(s) {
			return false
		}
		condition := vmistatus.FindCondition(&s.VMI.Status, v1.VirtualMachineInstanceSynchronized)
		return condition != nil && condition.Status == corev1.ConditionFalse && condition.Reason == reason
	}
}

// anyDataVolume matches VMs of which a DataVolume satisfies a predicate.
func anyDataVolume(is func(*cdi.DataVolume) bool) func(*Scope) bool {
	return func(s *Scope) bool {
		for _, dv := range s.dataVolumes {
			if is(dv) {
				return true
			}
		}
		return false
	}
}

func unbound(s *Scope) bool {
	for _, claim := range s.claims {
		if claim.Status.Phase != corev1.ClaimBound {
			return true
		}
	}
	return false
}
