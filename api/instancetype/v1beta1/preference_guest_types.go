// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// FeaturePreferences fills in features of the virtual hardware that a VM does not set.
type FeaturePreferences struct {
	// preferredAcpi turns ACPI on or off.
	// +optional
	PreferredAcpi *v1.FeatureState `json:"preferredAcpi,omitempty"`
	// preferredApic turns the APIC on or off, and sets it up.
	// +optional
	PreferredApic *v1.FeatureAPIC `json:"preferredApic,omitempty"`
	// preferredHyperv sets Hyper-V enlightenments, each that the VM does not set.
	// +optional
	PreferredHyperv *v1.FeatureHyperv `json:"preferredHyperv,omitempty"`
	// preferredKvm sets what KVM shows of itself.
	// +optional
	PreferredKvm *v1.FeatureKVM `json:"preferredKvm,omitempty"`
	// preferredPvspinlock turns paravirtual spinlocks on or off.
	// +optional
	PreferredPvspinlock *v1.FeatureState `json:"preferredPvspinlock,omitempty"`
	// preferredSmm turns the system management mode on or off. Secure boot needs it.
	// +optional
	PreferredSmm *v1.FeatureState `json:"preferredSmm,omitempty"`
}

// FirmwarePreferences chooses the firmware of a VM that chooses none.
type FirmwarePreferences struct {
	// preferredUseBios boots by BIOS.
	// +optional
	PreferredUseBios *bool `json:"preferredUseBios,omitempty"`
	// preferredUseBiosSerial shows what the BIOS writes on the serial console. It needs preferredUseBios.
	// +optional
	PreferredUseBiosSerial *bool `json:"preferredUseBiosSerial,omitempty"`
	// preferredUseEfi boots by EFI. Deprecated: use preferredEfi.
	// +optional
	DeprecatedPreferredUseEfi *bool `json:"preferredUseEfi,omitempty"`
	// preferredUseSecureBoot boots by EFI with secure boot. It needs preferredUseEfi and preferredSmm. Deprecated: use
	// preferredEfi.
	// +optional
	DeprecatedPreferredUseSecureBoot *bool `json:"preferredUseSecureBoot,omitempty"`
	// preferredEfi boots by EFI, with these options.
	// +optional
	PreferredEfi *v1.EFI `json:"preferredEfi,omitempty"`
}

// MachinePreferences chooses the machine type of a VM that chooses none.
type MachinePreferences struct {
	// preferredMachineType is QEMU's name of the machine type, such as q35 or pc-q35-10.0.
	// +optional
	PreferredMachineType string `json:"preferredMachineType,omitempty"`
}

// ClockPreferences sets the clock of a VM that does not.
type ClockPreferences struct {
	// preferredClockOffset is what the guest's clock shows at start: UTC, with or without an offset, or the time of a
	// time zone.
	// +optional
	PreferredClockOffset *v1.ClockOffset `json:"preferredClockOffset,omitempty"`
	// preferredTimer are the timers of a guest whose VM names none.
	// +optional
	PreferredTimer *v1.Timer `json:"preferredTimer,omitempty"`
}

// PreferenceRequirements is the least that a guest system runs with.
type PreferenceRequirements struct {
	// cpu is the least number of CPUs.
	// +optional
	CPU *CPUPreferenceRequirement `json:"cpu,omitempty"`
	// memory is the least amount of memory.
	// +optional
	Memory *MemoryPreferenceRequirement `json:"memory,omitempty"`
	// architecture is the one architecture that the guest system runs on, such as amd64 or arm64.
	// +optional
	Architecture *string `json:"architecture,omitempty"`
}

// CPUPreferenceRequirement is the least number of CPUs.
type CPUPreferenceRequirement struct {
	// guest is the number of CPUs that the guest must at least see. Required.
	Guest uint32 `json:"guest"`
}

// MemoryPreferenceRequirement is the least amount of memory.
type MemoryPreferenceRequirement struct {
	// guest is the memory that the guest must at least see, such as 2Gi. Required.
	Guest resource.Quantity `json:"guest"`
}
