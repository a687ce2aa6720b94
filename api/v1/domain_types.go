// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
)

// DomainSpec is the machine that the guest sees.
type DomainSpec struct {
	// resources are the CPU and memory that the scheduler sets aside for the guest. Default: computed from the guest's
	// size. Set by the user.
	Resources ResourceRequirements `json:"resources,omitempty"`
	// cpu is the number, the arrangement and the model of the CPUs. Default: one CPU of the cluster's model.
	// +optional
	CPU *CPU `json:"cpu,omitempty"`
	// memory is the guest's memory. Default: from resources.
	// +optional
	Memory *Memory `json:"memory,omitempty"`
	// machine is the machine type. Default: the cluster's, q35 on amd64.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// firmware is how the guest boots and how it is identified.
	// +optional
	Firmware *Firmware `json:"firmware,omitempty"`
	// clock is the guest's clock and its timers. Default: UTC and the machine's timers.
	// +optional
	Clock *Clock `json:"clock,omitempty"`
	// features are features of the machine. Default: ACPI.
	// +optional
	Features *Features `json:"features,omitempty"`
	// devices are the guest's devices.
	Devices Devices `json:"devices"`
	// ioThreadsPolicy defines how disks share I/O threads: shared, auto or supplementalPool. Default: no I/O threads.
	// +optional
	IOThreadsPolicy *IOThreadsPolicy `json:"ioThreadsPolicy,omitempty"`
	// ioThreads are options of I/O threads.
	// +optional
	IOThreads *DiskIOThreads `json:"ioThreads,omitempty"`
	// chassis is the chassis that the firmware reports.
	// +optional
	Chassis *Chassis `json:"chassis,omitempty"`
	// launchSecurity encrypts the guest's memory. Default: none.
	// +optional
	LaunchSecurity *LaunchSecurity `json:"launchSecurity,omitempty"`
	// rebootPolicy defines what a reboot of the guest does: Reboot (the default) or Terminate, which ends the VMI.
	// +optional
	RebootPolicy *RebootPolicy `json:"rebootPolicy,omitempty"`
}

// ResourceRequirements are CPU and memory as the scheduler counts them.
type ResourceRequirements struct {
	// requests are what a node must have free for the guest.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// limits are what the launcher Pod may use at most.
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
	// overcommitGuestOverhead leaves the overhead out of the requests, and keeps it in the limits. Default: false.
	OvercommitGuestOverhead bool `json:"overcommitGuestOverhead,omitempty"`
}

// Machine is a machine type.
type Machine struct {
	// type is its name, such as q35 or pc-q35-10.0.
	// +optional
	Type string `json:"type"`
}

// Chassis is the chassis that the firmware reports.
type Chassis struct {
	// manufacturer is the maker.
	Manufacturer string `json:"manufacturer,omitempty"`
	// version is the version.
	Version string `json:"version,omitempty"`
	// serial is the serial number.
	Serial string `json:"serial,omitempty"`
	// asset is the asset tag.
	Asset string `json:"asset,omitempty"`
	// sku is the stock keeping unit.
	Sku string `json:"sku,omitempty"`
}

// RebootPolicy defines what a reboot of the guest does.
// +kubebuilder:validation:Enum=Reboot;Terminate
type RebootPolicy string

// Values of RebootPolicy.
const (
	// RebootPolicyReboot resets the machine.
	RebootPolicyReboot RebootPolicy = "Reboot"
	// RebootPolicyTerminate ends the VMI, so that the next one starts with the VM's present spec.
	RebootPolicyTerminate RebootPolicy = "Terminate"
)

// IOThreadsPolicy defines how disks share I/O threads.
type IOThreadsPolicy string

// Values of IOThreadsPolicy.
const (
	// IOThreadsPolicyShared gives all disks one thread.
	IOThreadsPolicyShared IOThreadsPolicy = "shared"
	// IOThreadsPolicyAuto spreads the disks over a number of threads that follows the CPUs.
	IOThreadsPolicyAuto IOThreadsPolicy = "auto"
	// IOThreadsPolicySupplementalPool gives each disk all threads of a pool.
	IOThreadsPolicySupplementalPool IOThreadsPolicy = "supplementalPool"
)

// DiskIOThreads are options of I/O threads.
type DiskIOThreads struct {
	// supplementalPoolThreadCount is the number of threads of the pool.
	// +optional
	SupplementalPoolThreadCount *uint32 `json:"supplementalPoolThreadCount,omitempty"`
}

// LaunchSecurity encrypts the guest's memory. One member is set.
type LaunchSecurity struct {
	// sev uses AMD SEV.
	SEV *SEV `json:"sev,omitempty"`
	// snp uses AMD SEV-SNP.
	// +optional
	SNP *SEVSNP `json:"snp,omitempty"`
	// tdx uses Intel TDX.
	TDX *TDX `json:"tdx,omitempty"`
}

// SEV is AMD Secure Encrypted Virtualization.
type SEV struct {
	// policy is the guest's policy.
	Policy *SEVPolicy `json:"policy,omitempty"`
	// attestation has the guest's owner check the launch.
	// +optional
	Attestation *SEVAttestation `json:"attestation,omitempty"`
	// session is the owner's session blob in base64.
	Session string `json:"session,omitempty"`
	// dhCert is the owner's Diffie-Hellman key in base64.
	DHCert string `json:"dhCert,omitempty"`
}

// SEVPolicy is a guest's policy for SEV.
type SEVPolicy struct {
	// encryptedState encrypts registers too. Default: false.
	// +optional
	EncryptedState *bool `json:"encryptedState,omitempty"`
}

// SEVSNP is AMD SEV-SNP without options.
type SEVSNP struct{}

// SEVAttestation has no options.
type SEVAttestation struct{}

// TDX is Intel TDX without options.
type TDX struct{}
