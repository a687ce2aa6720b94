// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

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
