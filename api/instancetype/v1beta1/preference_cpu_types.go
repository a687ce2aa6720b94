// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	v1 "github.com/vireo-project/vireo/api/v1"
)

// CPUPreferences is how the CPUs of an instance type are shown to the guest.
type CPUPreferences struct {
	// preferredCPUTopology defines what a CPU of the instance type becomes: sockets (the default), cores, threads, spread
	// over more than one of these, or any, which is sockets with an instance type and the VM's own layout without one.
	// +optional
	PreferredCPUTopology *PreferredCPUTopology `json:"preferredCPUTopology,omitempty"`
	// spreadOptions defines over what CPUs are spread, and in what ratio, if preferredCPUTopology is spread.
	// +optional
	SpreadOptions *SpreadOptions `json:"spreadOptions,omitempty"`
	// preferredCPUFeatures are CPU features to add to those that the VM names.
	// +optional
	PreferredCPUFeatures []v1.CPUFeature `json:"preferredCPUFeatures,omitempty"`
}

// PreferredCPUTopology defines what a CPU of the instance type becomes in the guest.
type PreferredCPUTopology string

// Values of PreferredCPUTopology.
const (
	// Sockets makes each CPU a socket.
	Sockets PreferredCPUTopology = "sockets"
	// Cores makes each CPU a core of one socket.
	Cores PreferredCPUTopology = "cores"
	// Threads makes each CPU a thread of one core.
	Threads PreferredCPUTopology = "threads"
	// Spread divides the CPUs by SpreadOptions.
	Spread PreferredCPUTopology = "spread"
	// Any leaves the layout to the VM; with an instance type it is Sockets.
	Any PreferredCPUTopology = "any"

	// DeprecatedPreferSockets is the older spelling of Sockets.
	DeprecatedPreferSockets PreferredCPUTopology = "preferSockets"
	// DeprecatedPreferCores is the older spelling of Cores.
	DeprecatedPreferCores PreferredCPUTopology = "preferCores"
	// DeprecatedPreferThreads is the older spelling of Threads.
	DeprecatedPreferThreads PreferredCPUTopology = "preferThreads"
	// DeprecatedPreferSpread is the older spelling of Spread.
	DeprecatedPreferSpread PreferredCPUTopology = "preferSpread"
	// DeprecatedPreferAny is the older spelling of Any.
	DeprecatedPreferAny PreferredCPUTopology = "preferAny"
)

// SpreadOptions defines how CPUs are spread.
type SpreadOptions struct {
	// across is over what CPUs are spread: SocketsCores (the default), SocketsCoresThreads or CoresThreads.
	// +optional
	Across *SpreadAcross `json:"across,omitempty"`
	// ratio is the number of cores of a socket for SocketsCores and SocketsCoresThreads, and the number of threads of a
	// core, which must be 2, for CoresThreads. A core of SocketsCoresThreads has 2 threads. Default: 2.
	// +optional
	Ratio *uint32 `json:"ratio,omitempty"`
}

// SpreadAcross is over what CPUs are spread.
type SpreadAcross string

// Values of SpreadAcross.
const (
	// SpreadAcrossSocketsCoresThreads spreads over sockets, cores and threads.
	SpreadAcrossSocketsCoresThreads SpreadAcross = "SocketsCoresThreads"
	// SpreadAcrossSocketsCores spreads over sockets and cores.
	SpreadAcrossSocketsCores SpreadAcross = "SocketsCores"
	// SpreadAcrossCoresThreads spreads over cores and threads.
	SpreadAcrossCoresThreads SpreadAcross = "CoresThreads"
)
