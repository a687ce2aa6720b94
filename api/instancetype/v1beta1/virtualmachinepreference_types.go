// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// VirtualMachinePreference is what a guest system likes: devices, firmware, CPU layout. It fills in what the VMs of its
// namespace that refer to it leave open, and overrides nothing.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachinepreferences,singular=virtualmachinepreference,scope=Namespaced,shortName=vmpref;vmprefs;vmp;vmps,categories=all
type VirtualMachinePreference struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what the guest system likes; what is not set changes nothing. Required. Set by the user. A VM that exists
	// keeps the spec that it was first given.
	Spec VirtualMachinePreferenceSpec `json:"spec"`
}

// VirtualMachinePreferenceList is a list of VirtualMachinePreferences.
// +kubebuilder:object:root=true
type VirtualMachinePreferenceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachinePreference `json:"items"`
}

// VirtualMachineClusterPreference is what a guest system likes, for the VMs of every namespace. It differs from a
// VirtualMachinePreference in its scope only.
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineclusterpreferences,singular=virtualmachineclusterpreference,scope=Cluster,shortName=vmcp;vmcps
type VirtualMachineClusterPreference struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec is what the guest system likes; what is not set changes nothing. Required. Set by the administrator. A VM that
	// exists keeps the spec that it was first given.
	Spec VirtualMachinePreferenceSpec `json:"spec"`
}

// VirtualMachineClusterPreferenceList is a list of VirtualMachineClusterPreferences.
// +kubebuilder:object:root=true
type VirtualMachineClusterPreferenceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VirtualMachineClusterPreference `json:"items"`
}

// VirtualMachinePreferenceSpec is what a guest system likes, by subject. Whatever is not set changes nothing.
type VirtualMachinePreferenceSpec struct {
	// clock fills in the VM's domain.clock if the VM sets none.
	// +optional
	Clock *ClockPreferences `json:"clock,omitempty"`
	// cpu defines how the CPUs of the instance type are arranged, and fills in CPU features.
	// +optional
	CPU *CPUPreferences `json:"cpu,omitempty"`
	// devices fills in the VM's domain.devices, where the VM has no value of its own.
	// +optional
	Devices *DevicePreferences `json:"devices,omitempty"`
	// features fills in the VM's domain.features, each feature that the VM does not set.
	// +optional
	Features *FeaturePreferences `json:"features,omitempty"`
	// firmware fills in the VM's domain.firmware if the VM chooses neither BIOS nor EFI.
	// +optional
	Firmware *FirmwarePreferences `json:"firmware,omitempty"`
	// machine fills in the VM's domain.machine if the VM names no machine type.
	// +optional
	Machine *MachinePreferences `json:"machine,omitempty"`
	// volumes fills in the VM's dataVolumeTemplates.
	// +optional
	Volumes *VolumePreferences `json:"volumes,omitempty"`
	// preferredSubdomain is the subdomain of a VM that has none.
	// +optional
	PreferredSubdomain *string `json:"preferredSubdomain,omitempty"`
	// preferredTerminationGracePeriodSeconds is the time, in seconds, that the guest has to shut down if the VM does not
	// say.
	// +optional
	PreferredTerminationGracePeriodSeconds *int64 `json:"preferredTerminationGracePeriodSeconds,omitempty"`
	// requirements is the least that the guest system runs with. A VM with less is refused.
	// +optional
	Requirements *PreferenceRequirements `json:"requirements,omitempty"`
	// annotations are put on the VM's instance where its template does not have the key.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// preferSpreadSocketToCoreRatio is the number of cores of a socket if cpu.preferredCPUTopology is spread. Default: 2.
	// The newer cpu.spreadOptions.ratio is preferred to it.
	// +optional
	PreferSpreadSocketToCoreRatio uint32 `json:"preferSpreadSocketToCoreRatio,omitempty"`
	// preferredArchitecture is the architecture of a VM that names none, such as amd64 or arm64.
	// +optional
	PreferredArchitecture *string `json:"preferredArchitecture,omitempty"`
	// preferredLaunchSecurity runs the guest as a confidential one unless the VM defines it.
	// +optional
	PreferredLaunchSecurity *v1.LaunchSecurity `json:"preferredLaunchSecurity,omitempty"`
}

// VolumePreferences is about the volumes that are made for a VM.
type VolumePreferences struct {
	// preferredStorageClassName is the storage class of dataVolumeTemplates that name none.
	// +optional
	PreferredStorageClassName string `json:"preferredStorageClassName,omitempty"`
}
