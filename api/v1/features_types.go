// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// Features are features of the machine.
type Features struct {
	// acpi is on unless it is turned off.
	// +optional
	ACPI FeatureState `json:"acpi,omitempty"`
	// apic is the interrupt controller. Default: the machine's.
	// +optional
	APIC *FeatureAPIC `json:"apic,omitempty"`
	// hypervPassthrough shows the guest every Hyper-V feature of the node; such a guest cannot migrate.
	// +optional
	HypervPassthrough *HyperVPassthrough `json:"hypervPassthrough,omitempty"`
	// hyperv are Hyper-V features, which Windows runs better with. Default: none.
	// +optional
	Hyperv *FeatureHyperv `json:"hyperv,omitempty"`
	// smm is system management mode, which secure boot needs. Default: off.
	// +optional
	SMM *FeatureState `json:"smm,omitempty"`
	// kvm is how KVM shows itself.
	// +optional
	KVM *FeatureKVM `json:"kvm,omitempty"`
	// pvspinlock offers paravirtual spinlocks to the guest. Default: the hypervisor's.
	// +optional
	Pvspinlock *FeatureState `json:"pvspinlock,omitempty"`
}

// FeatureState turns a feature on or off.
type FeatureState struct {
	// enabled is false to turn it off. Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// FeatureAPIC is the interrupt controller.
type FeatureAPIC struct {
	FeatureState `json:",inline"`
	// endOfInterrupt reports the end of interrupts to the guest. Default: false.
	// +optional
	EndOfInterrupt bool `json:"endOfInterrupt,omitempty"`
}

// FeatureKVM is how KVM shows itself.
type FeatureKVM struct {
	// hidden hides KVM from the guest. Default: false.
	Hidden bool `json:"hidden,omitempty"`
}

// HyperVPassthrough shows every Hyper-V feature of the node.
type HyperVPassthrough struct {
	// enabled is false to turn it off. Default: true.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
}

// FeatureHyperv are Hyper-V features. Each is off unless it is given.
type FeatureHyperv struct {
	// relaxed keeps Windows from expecting interrupts in time.
	// +optional
	Relaxed *FeatureState `json:"relaxed,omitempty"`
	// vapic is a paravirtual interrupt controller.
	// +optional
	VAPIC *FeatureState `json:"vapic,omitempty"`
	// spinlocks has the guest give up its CPU while it waits for a lock.
	// +optional
	Spinlocks *FeatureSpinlocks `json:"spinlocks,omitempty"`
	// vpindex numbers the virtual CPUs.
	// +optional
	VPIndex *FeatureState `json:"vpindex,omitempty"`
	// runtime reports to the guest how long its CPUs really ran.
	// +optional
	Runtime *FeatureState `json:"runtime,omitempty"`
	// synic is the synthetic interrupt controller. Needs vpindex.
	// +optional
	SyNIC *FeatureState `json:"synic,omitempty"`
	// synictimer are synthetic timers. Needs synic.
	// +optional
	SyNICTimer *SyNICTimer `json:"synictimer,omitempty"`
	// reset lets the guest reset itself through the hypervisor.
	// +optional
	Reset *FeatureState `json:"reset,omitempty"`
	// vendorid is the hypervisor's name.
	// +optional
	VendorID *FeatureVendorID `json:"vendorid,omitempty"`
	// frequencies reports to the guest the frequencies of its clocks.
	// +optional
	Frequencies *FeatureState `json:"frequencies,omitempty"`
	// reenlightenment notifies the guest when they change.
	// +optional
	Reenlightenment *FeatureState `json:"reenlightenment,omitempty"`
	// tlbflush flushes translations through the hypervisor. Needs vpindex.
	// +optional
	TLBFlush *TLBFlush `json:"tlbflush,omitempty"`
	// ipi sends interrupts between CPUs through the hypervisor. Needs vpindex.
	// +optional
	IPI *FeatureState `json:"ipi,omitempty"`
	// evmcs speeds nested guests up. Needs vapic.
	// +optional
	EVMCS *FeatureState `json:"evmcs,omitempty"`
}

// FeatureSpinlocks has the guest give up its CPU while it waits for a lock.
type FeatureSpinlocks struct {
	FeatureState `json:",inline"`
	// spinlocks is the number of tries before that, at least 4096. Default: 4096.
	// +optional
	Retries *uint32 `json:"spinlocks,omitempty"`
}

// FeatureVendorID is the hypervisor's name.
type FeatureVendorID struct {
	FeatureState `json:",inline"`
	// vendorid is up to twelve characters.
	VendorID string `json:"vendorid,omitempty"`
}

// SyNICTimer are synthetic timers.
type SyNICTimer struct {
	FeatureState `json:",inline"`
	// direct has them raise interrupts directly.
	// +optional
	Direct *FeatureState `json:"direct,omitempty"`
}

// TLBFlush flushes translations through the hypervisor.
type TLBFlush struct {
	FeatureState `json:",inline"`
	// direct does so for nested guests directly.
	// +optional
	Direct *FeatureState `json:"direct,omitempty"`
	// extended lets the guest flush a part.
	// +optional
	Extended *FeatureState `json:"extended,omitempty"`
}
