// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// CPU is the number, the arrangement and the model of a guest's CPUs.
type CPU struct {
	// cores is the number of cores of a socket. Default: 1.
	Cores uint32 `json:"cores,omitempty"`
	// sockets is the number of sockets. Default: from resources if no other field gives a number, otherwise 1.
	Sockets uint32 `json:"sockets,omitempty"`
	// maxSockets is the number of sockets up to which some can be added while the guest runs. Default: none can.
	MaxSockets uint32 `json:"maxSockets,omitempty"`
	// threads is the number of threads of a core. Default: 1.
	Threads uint32 `json:"threads,omitempty"`
	// model is host-model, host-passthrough or the name of a model that libvirt knows. Default: the cluster's,
	// host-model.
	// +optional
	Model string `json:"model,omitempty"`
	// features are features to add to the model or to take from it.
	// +optional
	Features []CPUFeature `json:"features,omitempty"`
	// dedicatedCpuPlacement gives each virtual CPU a CPU of its own. Default: false.
	// +optional
	DedicatedCPUPlacement bool `json:"dedicatedCpuPlacement,omitempty"`
	// numa shows the guest the node's NUMA layout.
	// +optional
	NUMA *NUMA `json:"numa,omitempty"`
	// isolateEmulatorThread gives QEMU's own threads one more dedicated CPU. Default: false.
	// +optional
	IsolateEmulatorThread bool `json:"isolateEmulatorThread,omitempty"`
	// realtime runs virtual CPUs with a realtime priority.
	// +optional
	Realtime *Realtime `json:"realtime,omitempty"`
}

// CPUFeature is a feature of a CPU.
type CPUFeature struct {
	// name is libvirt's name of the feature.
	Name string `json:"name"`
	// policy is force, require, optional, disable or forbid. Default: require.
	// +optional
	Policy string `json:"policy,omitempty"`
}

// NUMA is what the guest sees of the node's NUMA layout.
type NUMA struct {
	// guestMappingPassthrough shows it as it is.
	// +optional
	GuestMappingPassthrough *NUMAGuestMappingPassthrough `json:"guestMappingPassthrough,omitempty"`
}

// NUMAGuestMappingPassthrough has no options.
type NUMAGuestMappingPassthrough struct{}

// Realtime runs virtual CPUs with a realtime priority.
type Realtime struct {
	// mask chooses the virtual CPUs, such as 0-3,^1. Default: all.
	// +optional
	Mask string `json:"mask,omitempty"`
}
