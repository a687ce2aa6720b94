// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type CPU struct {
	Cores      uint32 `json:"cores,omitempty"`
	Sockets    uint32 `json:"sockets,omitempty"`
	MaxSockets uint32 `json:"maxSockets,omitempty"`
	Threads    uint32 `json:"threads,omitempty"`
	// +optional
	Model string `json:"model,omitempty"`
	// +optional
	Features []CPUFeature `json:"features,omitempty"`
	// +optional
	DedicatedCPUPlacement bool `json:"dedicatedCpuPlacement,omitempty"`
	// +optional
	NUMA *NUMA `json:"numa,omitempty"`
	// +optional
	IsolateEmulatorThread bool `json:"isolateEmulatorThread,omitempty"`
	// +optional
	Realtime *Realtime `json:"realtime,omitempty"`
}

type CPUFeature struct {
	Name string `json:"name"`
	// +optional
	Policy string `json:"policy,omitempty"`
}

type NUMA struct {
	// +optional
	GuestMappingPassthrough *NUMAGuestMappingPassthrough `json:"guestMappingPassthrough,omitempty"`
}

type NUMAGuestMappingPassthrough struct{}

type Realtime struct {
	// +optional
	Mask string `json:"mask,omitempty"`
}
