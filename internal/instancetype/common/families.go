// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package common

// family describes the instance types whose names have the same prefix. They differ only in their size.
type family struct {
	name  string
	class string
	// title, icon and description are shown by consoles. icon is a class of PatternFly's icon font.
	title, icon, description string
	sizes                    []size
	// pages are the huge pages of the guest's memory. There is an instance type for each combination of a size and one of them. Empty
	// means ordinary memory.
	pages []hugePages
	// dedicated gives each vCPU, and the emulator, a CPU of the node.
	dedicated bool
	// numa shows the guest the NUMA topology of these CPUs.
	numa bool
	// realtime runs the vCPUs with a real-time priority.
	realtime bool
	// undisturbed disables interrupts of devices, CPU quotas and load balancing on these CPUs. Only CRI-O implements it.
	undisturbed bool
	// ioThreads sets ioThreadsPolicy to auto.
	ioThreads bool
	// fixedCPUs leaves no CPUs for hotplug.
	fixedCPUs bool
	// overcommitPercent is the part of the guest's memory that the launcher Pod does not request.
	overcommitPercent int
}

// size is one size of a family.
type size struct {
	name   string
	cpus   uint32
	memory string
}

// hugePages is a size of huge pages.
type hugePages struct {
	size string
	// suffix is the suffix of the size in the instance type's name.
	suffix string
}

var (
	gigabytePages = []hugePages{{size: "1Gi"}}
	bothPages     = []hugePages{{size: "2Mi"}, {size: "1Gi", suffix: "1gi"}}
)

// families are the common instance types. Source of the values: kubevirt/common-instancetypes v1.7.0.
var families = []family{
	{
		name: "u1", class: "general.purpose", title: "General Purpose", icon: "pficon-server-group",
		description: "U is for universal: for applications without special needs. VMs share the CPUs of their node.",
		sizes:       generalSizes,
	},
	{
		name: "o1", class: "overcommitted", title: "Overcommitted", icon: "pficon-virtual-machine",
		description: "O is for overcommitted: like U, but a VM requests only half of its memory from its node. " +
			"It can be stopped when the node runs out of memory.",
		sizes:             without(generalSizes, "2xmedium"),
		overcommitPercent: 50,
	},
	{
		name: "d1", class: "dedicated.vcpu", title: "Dedicated vCPU", icon: "pficon-server-group",
		description: "D is for dedicated: for predictable performance. Each vCPU has a CPU of the node to itself. " +
			"Requires nodes with the static policy of the CPU manager.",
		sizes:     generalSizes,
		dedicated: true, ioThreads: true,
	},
	{
		name: "rt1", class: "realtime", title: "Realtime", icon: "pficon-server-group",
		description: "RT is for real-time applications. Each vCPU has a CPU of the node to itself and a real-time priority. " +
			"Requires nodes with a real-time kernel, huge pages of 1Gi and the static policy of the CPU manager.",
		sizes: without(generalSizes, "nano", "2xmedium"), pages: gigabytePages,
		dedicated: true, numa: true, realtime: true, undisturbed: true,
	},
	{
		name: "cx1", class: "compute.exclusive", title: "Compute Exclusive", icon: "pficon-registry",
		description: "CX is for compute exclusive: for applications that keep CPUs busy. Each vCPU has a CPU of the node to itself, " +
			"disks have threads on further CPUs, and the guest has the NUMA topology of its CPUs. " +
			"Requires nodes with huge pages and the static policy of the CPU manager.",
		sizes: computeSizes, pages: bothPages,
		dedicated: true, numa: true, ioThreads: true, fixedCPUs: true,
	},
	{
		name: "m1", class: "memory.intensive", title: "Memory Intensive", icon: "fa-memory",
		description: "M is for memory: for applications that need much of it. Requires nodes with huge pages.",
		sizes:       memorySizes, pages: bothPages,
	},
	{
		name: "n1", class: "network", title: "Network", icon: "pficon-network",
		description: "N is for network: for DPDK applications, such as virtual network functions. Each vCPU has a CPU of the node to " +
			"itself. Requires nodes that are prepared for DPDK, with huge pages of 1Gi and the static policy of the CPU manager.",
		sizes: networkSizes, pages: gigabytePages,
		dedicated: true, undisturbed: true,
	},
}

var generalSizes = []size{
	{"nano", 1, "512Mi"},
	{"micro", 1, "1Gi"},
	{"small", 1, "2Gi"},
	{"medium", 1, "4Gi"},
	{"2xmedium", 2, "4Gi"},
	{"large", 2, "8Gi"},
	{"xlarge", 4, "16Gi"},
	{"2xlarge", 8, "32Gi"},
	{"4xlarge", 16, "64Gi"},
	{"8xlarge", 32, "128Gi"},
}

var computeSizes = []size{
	{"medium", 1, "2Gi"},
	{"large", 2, "4Gi"},
	{"xlarge", 4, "8Gi"},
	{"2xlarge", 8, "16Gi"},
	{"4xlarge", 16, "32Gi"},
	{"8xlarge", 32, "64Gi"},
}

var memorySizes = []size{
	{"large", 2, "16Gi"},
	{"xlarge", 4, "32Gi"},
	{"2xlarge", 8, "64Gi"},
	{"4xlarge", 16, "128Gi"},
	{"8xlarge", 32, "256Gi"},
}

var networkSizes = []size{
	{"medium", 4, "4Gi"},
	{"large", 4, "8Gi"},
	{"xlarge", 8, "16Gi"},
	{"2xlarge", 16, "32Gi"},
	{"4xlarge", 32, "64Gi"},
	{"8xlarge", 64, "128Gi"},
}
