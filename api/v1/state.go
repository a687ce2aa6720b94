// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// PersistentStateLabel is on the claim with a VM's persistent state, and names the VM. The claim's name begins
// with it. Source: kubevirt/kubevirt pkg/storage/backend-storage, PVCPrefix.
const PersistentStateLabel = "persistent-state-for"

// HasTPM reports whether the guest has a TPM. A preference's TPM can be turned off again.
func (s *VirtualMachineInstanceSpec) HasTPM() bool {
	tpm := s.Domain.Devices.TPM
	return tpm != nil && (tpm.Enabled == nil || *tpm.Enabled)
}

// HasPersistentTPM reports whether the TPM keeps its state across starts.
func (s *VirtualMachineInstanceSpec) HasPersistentTPM() bool {
	return s.HasTPM() && s.Domain.Devices.TPM.Persistent != nil && *s.Domain.Devices.TPM.Persistent
}

// HasPersistentEFI reports whether the EFI variables are kept across starts.
func (s *VirtualMachineInstanceSpec) HasPersistentEFI() bool {
	firmware := s.Domain.Firmware
	if firmware == nil || firmware.Bootloader == nil || firmware.Bootloader.EFI == nil {
		return false
	}
	persistent := firmware.Bootloader.EFI.Persistent
	return persistent != nil && *persistent
}

// HasPersistentState reports whether TPM or EFI state is kept across starts.
func (s *VirtualMachineInstanceSpec) HasPersistentState() bool {
	return s.HasPersistentTPM() || s.HasPersistentEFI()
}
