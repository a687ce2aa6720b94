// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// IsFinal says that the VMI has ended: nothing will run it again.
func (v *VirtualMachineInstance) IsFinal() bool {
	return v.Status.Phase == Succeeded || v.Status.Phase == Failed
}

// IsRunning says that the agent reports a running guest; a paused one counts.
func (v *VirtualMachineInstance) IsRunning() bool {
	return v.Status.Phase == Running
}

// IsScheduled says that the VMI was handed over to the agent, which has not started the guest yet.
func (v *VirtualMachineInstance) IsScheduled() bool {
	return v.Status.Phase == Scheduled
}

// IsUnprocessed says that there is no launcher Pod yet.
func (v *VirtualMachineInstance) IsUnprocessed() bool {
	return v.Status.Phase == Pending || v.Status.Phase == VmPhaseUnset
}

// IsMarkedForDeletion says that somebody deleted the VMI.
func (v *VirtualMachineInstance) IsMarkedForDeletion() bool {
	return v.DeletionTimestamp != nil
}

// IsCPUDedicated says that each virtual CPU gets a whole CPU of the node.
func (v *VirtualMachineInstance) IsCPUDedicated() bool {
	return v.Spec.Domain.CPU != nil && v.Spec.Domain.CPU.DedicatedCPUPlacement
}

// IsBootloaderEFI says that the guest boots by EFI rather than BIOS.
func (v *VirtualMachineInstance) IsBootloaderEFI() bool {
	fw := v.Spec.Domain.Firmware
	return fw != nil && fw.Bootloader != nil && fw.Bootloader.EFI != nil
}

// ShouldStartPaused says that the guest's CPUs stand still until somebody unpauses it.
func (v *VirtualMachineInstance) ShouldStartPaused() bool {
	return v.Spec.StartStrategy != nil && *v.Spec.StartStrategy == StartStrategyPaused
}
