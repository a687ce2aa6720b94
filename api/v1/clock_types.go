// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// +kubebuilder:pruning:PreserveUnknownFields
type Clock struct {
	ClockOffset `json:",inline"`
	// +optional
	Timer *Timer `json:"timer,omitempty"`
}

type ClockOffset struct {
	UTC      *ClockOffsetUTC      `json:"utc,omitempty"`
	Timezone *ClockOffsetTimezone `json:"timezone,omitempty"`
}

type ClockOffsetUTC struct {
	OffsetSeconds *int `json:"offsetSeconds,omitempty"`
}

type ClockOffsetTimezone string

type Timer struct {
	HPET   *HPETTimer   `json:"hpet,omitempty"`
	KVM    *KVMTimer    `json:"kvm,omitempty"`
	PIT    *PITTimer    `json:"pit,omitempty"`
	RTC    *RTCTimer    `json:"rtc,omitempty"`
	Hyperv *HypervTimer `json:"hyperv,omitempty"`
}

type HPETTickPolicy string

// Values of HPETTickPolicy.
const (
	HPETTickPolicyDelay   HPETTickPolicy = "delay"
	HPETTickPolicyCatchup HPETTickPolicy = "catchup"
	HPETTickPolicyMerge   HPETTickPolicy = "merge"
	HPETTickPolicyDiscard HPETTickPolicy = "discard"
)

type PITTickPolicy string

// Values of PITTickPolicy.
const (
	PITTickPolicyDelay   PITTickPolicy = "delay"
	PITTickPolicyCatchup PITTickPolicy = "catchup"
	PITTickPolicyDiscard PITTickPolicy = "discard"
)

type RTCTickPolicy string

// Values of RTCTickPolicy.
const (
	RTCTickPolicyDelay   RTCTickPolicy = "delay"
	RTCTickPolicyCatchup RTCTickPolicy = "catchup"
)

type RTCTimerTrack string

// Values of RTCTimerTrack.
const (
	TrackGuest RTCTimerTrack = "guest"
	TrackWall  RTCTimerTrack = "wall"
)

type RTCTimer struct {
	TickPolicy RTCTickPolicy `json:"tickPolicy,omitempty"`
	// +optional
	Enabled *bool         `json:"present,omitempty"`
	Track   RTCTimerTrack `json:"track,omitempty"`
}

type HPETTimer struct {
	TickPolicy HPETTickPolicy `json:"tickPolicy,omitempty"`
	// +optional
	Enabled *bool `json:"present,omitempty"`
}

type PITTimer struct {
	TickPolicy PITTickPolicy `json:"tickPolicy,omitempty"`
	// +optional
	Enabled *bool `json:"present,omitempty"`
}

type KVMTimer struct {
	// +optional
	Enabled *bool `json:"present,omitempty"`
}

type HypervTimer struct {
	// +optional
	Enabled *bool `json:"present,omitempty"`
}
