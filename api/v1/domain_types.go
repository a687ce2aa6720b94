// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
)

type DomainSpec struct {
	Resources ResourceRequirements `json:"resources,omitempty"`
	// +optional
	CPU *CPU `json:"cpu,omitempty"`
	// +optional
	Memory *Memory `json:"memory,omitempty"`
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// +optional
	Firmware *Firmware `json:"firmware,omitempty"`
	// +optional
	Clock *Clock `json:"clock,omitempty"`
	// +optional
	Features *Features `json:"features,omitempty"`
	Devices  Devices   `json:"devices"`
	// +optional
	IOThreadsPolicy *IOThreadsPolicy `json:"ioThreadsPolicy,omitempty"`
	// +optional
	IOThreads *DiskIOThreads `json:"ioThreads,omitempty"`
	// +optional
	Chassis *Chassis `json:"chassis,omitempty"`
	// +optional
	LaunchSecurity *LaunchSecurity `json:"launchSecurity,omitempty"`
	// +optional
	RebootPolicy *RebootPolicy `json:"rebootPolicy,omitempty"`
}

type ResourceRequirements struct {
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// +optional
	Limits                  corev1.ResourceList `json:"limits,omitempty"`
	OvercommitGuestOverhead bool                `json:"overcommitGuestOverhead,omitempty"`
}

type Machine struct {
	// +optional
	Type string `json:"type"`
}

type Chassis struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Version      string `json:"version,omitempty"`
	Serial       string `json:"serial,omitempty"`
	Asset        string `json:"asset,omitempty"`
	Sku          string `json:"sku,omitempty"`
}

// +kubebuilder:validation:Enum=Reboot;Terminate
type RebootPolicy string

// Values of RebootPolicy.
const (
	RebootPolicyReboot    RebootPolicy = "Reboot"
	RebootPolicyTerminate RebootPolicy = "Terminate"
)

type IOThreadsPolicy string

// Values of IOThreadsPolicy.
const (
	IOThreadsPolicyShared           IOThreadsPolicy = "shared"
	IOThreadsPolicyAuto             IOThreadsPolicy = "auto"
	IOThreadsPolicySupplementalPool IOThreadsPolicy = "supplementalPool"
)

type DiskIOThreads struct {
	// +optional
	SupplementalPoolThreadCount *uint32 `json:"supplementalPoolThreadCount,omitempty"`
}

type LaunchSecurity struct {
	SEV *SEV `json:"sev,omitempty"`
	// +optional
	SNP *SEVSNP `json:"snp,omitempty"`
	TDX *TDX    `json:"tdx,omitempty"`
}

type SEV struct {
	Policy *SEVPolicy `json:"policy,omitempty"`
	// +optional
	Attestation *SEVAttestation `json:"attestation,omitempty"`
	Session     string          `json:"session,omitempty"`
	DHCert      string          `json:"dhCert,omitempty"`
}

type SEVPolicy struct {
	// +optional
	EncryptedState *bool `json:"encryptedState,omitempty"`
}

type SEVSNP struct{}

type SEVAttestation struct{}

type TDX struct{}
