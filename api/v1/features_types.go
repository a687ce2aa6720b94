// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type Features struct {
	// +optional
	ACPI FeatureState `json:"acpi,omitempty"`
	// +optional
	APIC *FeatureAPIC `json:"apic,omitempty"`
	// +optional
	HypervPassthrough *HyperVPassthrough `json:"hypervPassthrough,omitempty"`
	// +optional
	Hyperv *FeatureHyperv `json:"hyperv,omitempty"`
	// +optional
	SMM *FeatureState `json:"smm,omitempty"`
	// +optional
	KVM *FeatureKVM `json:"kvm,omitempty"`
	// +optional
	Pvspinlock *FeatureState `json:"pvspinlock,omitempty"`
}

type FeatureState struct {
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

type FeatureAPIC struct {
	FeatureState `json:",inline"`
	// +optional
	EndOfInterrupt bool `json:"endOfInterrupt,omitempty"`
}

type FeatureKVM struct {
	Hidden bool `json:"hidden,omitempty"`
}

type HyperVPassthrough struct {
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

type FeatureHyperv struct {
	// +optional
	Relaxed *FeatureState `json:"relaxed,omitempty"`
	// +optional
	VAPIC *FeatureState `json:"vapic,omitempty"`
	// +optional
	Spinlocks *FeatureSpinlocks `json:"spinlocks,omitempty"`
	// +optional
	VPIndex *FeatureState `json:"vpindex,omitempty"`
	// +optional
	Runtime *FeatureState `json:"runtime,omitempty"`
	// +optional
	SyNIC *FeatureState `json:"synic,omitempty"`
	// +optional
	SyNICTimer *SyNICTimer `json:"synictimer,omitempty"`
	// +optional
	Reset *FeatureState `json:"reset,omitempty"`
	// +optional
	VendorID *FeatureVendorID `json:"vendorid,omitempty"`
	// +optional
	Frequencies *FeatureState `json:"frequencies,omitempty"`
	// +optional
	Reenlightenment *FeatureState `json:"reenlightenment,omitempty"`
	// +optional
	TLBFlush *TLBFlush `json:"tlbflush,omitempty"`
	// +optional
	IPI *FeatureState `json:"ipi,omitempty"`
	// +optional
	EVMCS *FeatureState `json:"evmcs,omitempty"`
}

type FeatureSpinlocks struct {
	FeatureState `json:",inline"`
	// +optional
	Retries *uint32 `json:"spinlocks,omitempty"`
}

type FeatureVendorID struct {
	FeatureState `json:",inline"`
	VendorID     string `json:"vendorid,omitempty"`
}

type SyNICTimer struct {
	FeatureState `json:",inline"`
	// +optional
	Direct *FeatureState `json:"direct,omitempty"`
}

type TLBFlush struct {
	FeatureState `json:",inline"`
	// +optional
	Direct *FeatureState `json:"direct,omitempty"`
	// +optional
	Extended *FeatureState `json:"extended,omitempty"`
}
