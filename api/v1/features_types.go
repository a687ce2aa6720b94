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

// Clock is a guest's clock.
// +kubebuilder:pruning:PreserveUnknownFields
type Clock struct {
	ClockOffset `json:",inline"`
	// timer are the guest's timers. Default: the machine's.
	// +optional
	Timer *Timer `json:"timer,omitempty"`
}

// ClockOffset is what the clock shows at boot. One member is set.
type ClockOffset struct {
	// utc sets the clock to UTC.
	UTC *ClockOffsetUTC `json:"utc,omitempty"`
	// timezone sets the clock to the time of a zone, such as Europe/Berlin.
	Timezone *ClockOffsetTimezone `json:"timezone,omitempty"`
}

// ClockOffsetUTC is an offset from UTC.
type ClockOffsetUTC struct {
	// offsetSeconds is the offset in seconds. If it is given, what the guest sets is kept across reboots.
	OffsetSeconds *int `json:"offsetSeconds,omitempty"`
}

// ClockOffsetTimezone is the name of a time zone.
type ClockOffsetTimezone string

// Timer is which timers a guest has.
type Timer struct {
	// hpet is the high precision event timer.
	HPET *HPETTimer `json:"hpet,omitempty"`
	// kvm is the clock that KVM shows to Linux.
	KVM *KVMTimer `json:"kvm,omitempty"`
	// pit is the programmable interval timer.
	PIT *PITTimer `json:"pit,omitempty"`
	// rtc is the real time clock.
	RTC *RTCTimer `json:"rtc,omitempty"`
	// hyperv is the clock that Hyper-V shows to Windows.
	Hyperv *HypervTimer `json:"hyperv,omitempty"`
}

// HPETTickPolicy defines the handling of missed ticks.
type HPETTickPolicy string

// Values of HPETTickPolicy.
const (
	// HPETTickPolicyDelay brings them late at the usual rate.
	HPETTickPolicyDelay HPETTickPolicy = "delay"
	// HPETTickPolicyCatchup brings them at a higher rate.
	HPETTickPolicyCatchup HPETTickPolicy = "catchup"
	// HPETTickPolicyMerge makes one of them.
	HPETTickPolicyMerge HPETTickPolicy = "merge"
	// HPETTickPolicyDiscard drops them.
	HPETTickPolicyDiscard HPETTickPolicy = "discard"
)

// PITTickPolicy defines the handling of missed ticks.
type PITTickPolicy string

// Values of PITTickPolicy.
const (
	// PITTickPolicyDelay brings them late at the usual rate.
	PITTickPolicyDelay PITTickPolicy = "delay"
	// PITTickPolicyCatchup brings them at a higher rate.
	PITTickPolicyCatchup PITTickPolicy = "catchup"
	// PITTickPolicyDiscard drops them.
	PITTickPolicyDiscard PITTickPolicy = "discard"
)

// RTCTickPolicy defines the handling of missed ticks.
type RTCTickPolicy string

// Values of RTCTickPolicy.
const (
	// RTCTickPolicyDelay brings them late at the usual rate.
	RTCTickPolicyDelay RTCTickPolicy = "delay"
	// RTCTickPolicyCatchup brings them at a higher rate.
	RTCTickPolicyCatchup RTCTickPolicy = "catchup"
)

// RTCTimerTrack is the time that the real time clock follows.
type RTCTimerTrack string

// Values of RTCTimerTrack.
const (
	// TrackGuest is the guest's time, which is stopped while the guest is paused.
	TrackGuest RTCTimerTrack = "guest"
	// TrackWall is the node's time.
	TrackWall RTCTimerTrack = "wall"
)

// RTCTimer is the real time clock.
type RTCTimer struct {
	// tickPolicy is delay or catchup.
	TickPolicy RTCTickPolicy `json:"tickPolicy,omitempty"`
	// present is false to leave the timer out. Default: true.
	// +optional
	Enabled *bool `json:"present,omitempty"`
	// track is guest or wall.
	Track RTCTimerTrack `json:"track,omitempty"`
}

// HPETTimer is the high precision event timer.
type HPETTimer struct {
	// tickPolicy is delay, catchup, merge or discard.
	TickPolicy HPETTickPolicy `json:"tickPolicy,omitempty"`
	// present is false to leave the timer out. Default: true.
	// +optional
	Enabled *bool `json:"present,omitempty"`
}

// PITTimer is the programmable interval timer.
type PITTimer struct {
	// tickPolicy is delay, catchup or discard.
	TickPolicy PITTickPolicy `json:"tickPolicy,omitempty"`
	// present is false to leave the timer out. Default: true.
	// +optional
	Enabled *bool `json:"present,omitempty"`
}

// KVMTimer is KVM's clock.
type KVMTimer struct {
	// present is false to leave the timer out. Default: true.
	// +optional
	Enabled *bool `json:"present,omitempty"`
}

// HypervTimer is Hyper-V's clock.
type HypervTimer struct {
	// present is false to leave the timer out. Default: true.
	// +optional
	Enabled *bool `json:"present,omitempty"`
}
