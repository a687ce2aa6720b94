// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// IsFinal reports whether the VMI has finished. It is never run again.
func (v *VirtualMachineInstance) IsFinal() bool {
	return v.Status.Phase == Succeeded || v.Status.Phase == Failed
}

// IsRunning reports whether the agent reports a running guest; a paused one counts.
func (v *VirtualMachineInstance) IsRunning() bool {
	return v.Status.Phase == Running
}

// IsScheduled reports whether the VMI was assigned to the agent, which has not started the guest yet.
func (v *VirtualMachineInstance) IsScheduled() bool {
	return v.Status.Phase == Scheduled
}

// IsUnprocessed reports whether there is no launcher Pod yet.
func (v *VirtualMachineInstance) IsUnprocessed() bool {
	return v.Status.Phase == Pending || v.Status.Phase == VmPhaseUnset
}

// IsMarkedForDeletion reports whether a user deleted the VMI.
func (v *VirtualMachineInstance) IsMarkedForDeletion() bool {
	return v.DeletionTimestamp != nil
}

// IsCPUDedicated reports whether each virtual CPU gets a whole CPU of the node.
func (v *VirtualMachineInstance) IsCPUDedicated() bool {
	return v.Spec.Domain.CPU != nil && v.Spec.Domain.CPU.DedicatedCPUPlacement
}

// IsBootloaderEFI reports whether the guest boots by EFI rather than BIOS.
func (v *VirtualMachineInstance) IsBootloaderEFI() bool {
	fw := v.Spec.Domain.Firmware
	return fw != nil && fw.Bootloader != nil && fw.Bootloader.EFI != nil
}

// ShouldStartPaused reports whether the guest starts paused.
func (v *VirtualMachineInstance) ShouldStartPaused() bool {
	return v.Spec.StartStrategy != nil && *v.Spec.StartStrategy == StartStrategyPaused
}
