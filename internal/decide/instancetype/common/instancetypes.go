// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package common generates the cluster-wide instance types and preferences of KubeVirt's common-instancetypes, with the
// same names, labels and specs. Users, images and consoles refer to them by name and select them by label.
//
// instancetypes.go and systems.go contain the tables. traits.go contains the parts of preferences to which the table of
// systems refers.
package common

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Labels and annotations of instance types.
const (
	classLabel    = prefix + "class"
	sizeLabel     = prefix + "size"
	versionLabel  = prefix + "version"
	iconLabel     = prefix + "icon-pf"
	cpuLabel      = prefix + "cpu"
	memoryLabel   = prefix + "memory"
	pagesLabel    = prefix + "hugepages"
	dedicateLabel = prefix + "dedicatedCPUPlacement"
	isolateLabel  = prefix + "isolateEmulatorThread"
	numaLabel     = prefix + "numa"
	realtimeLabel = prefix + "realtime"

	titleAnnotation       = prefix + "displayName"
	descriptionAnnotation = prefix + "description"
)

// familyVersion is the version of every family, such as the 1 in u1.
const familyVersion = "1"

// Annotations with which CRI-O disables these functions of the node's kernel on the CPUs of a Pod, and their value.
const (
	cpuLoadBalancingAnnotation = "cpu-load-balancing.crio.io"
	cpuQuotaAnnotation         = "cpu-quota.crio.io"
	irqLoadBalancingAnnotation = "irq-load-balancing.crio.io"

	disable = "disable"
)

// Instancetypes returns the common instance types. The caller owns them.
func Instancetypes() []*v1beta1.VirtualMachineClusterInstancetype {
	var all []*v1beta1.VirtualMachineClusterInstancetype
	for i := range families {
		f := &families[i]
		for _, s := range f.sizes {
			if len(f.pages) == 0 {
				all = append(all, f.instancetype(s, nil))
			}
			for j := range f.pages {
				all = append(all, f.instancetype(s, &f.pages[j]))
			}
		}
	}
	return all
}

// instancetype returns the instance type of a size. pages is nil for ordinary memory.
func (f *family) instancetype(s size, pages *hugePages) *v1beta1.VirtualMachineClusterInstancetype {
	name := s.name
	if pages != nil {
		name += pages.suffix
	}
	spec := f.spec(s, pages)
	labels := labelsOf(&spec)
	labels[classLabel] = f.class
	labels[sizeLabel] = name
	labels[versionLabel] = familyVersion
	labels[iconLabel] = f.icon
	labels[memoryLabel] = s.memory
	return &v1beta1.VirtualMachineClusterInstancetype{
		TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "VirtualMachineClusterInstancetype"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        f.name + "." + name,
			Labels:      labels,
			Annotations: map[string]string{titleAnnotation: f.title, descriptionAnnotation: f.description},
		},
		Spec: spec,
	}
}

func (f *family) spec(s size, pages *hugePages) v1beta1.VirtualMachineInstancetypeSpec {
	spec := v1beta1.VirtualMachineInstancetypeSpec{
		CPU:    v1beta1.CPUInstancetype{Guest: s.cpus},
		Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse(s.memory), OvercommitPercent: f.overcommitPercent},
	}
	if pages != nil {
		spec.Memory.Hugepages = &v1.Hugepages{PageSize: pages.size}
	}
	if f.dedicated {
		spec.CPU.DedicatedCPUPlacement = ptr.To(true)
		spec.CPU.IsolateEmulatorThread = ptr.To(true)
	}
	if f.numa {
		spec.CPU.NUMA = &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}
	}
	if f.realtime {
		spec.CPU.Realtime = &v1.Realtime{}
	}
	if f.undisturbed {
		spec.Annotations = map[string]string{
			cpuLoadBalancingAnnotation: disable, cpuQuotaAnnotation: disable, irqLoadBalancingAnnotation: disable,
		}
	}
	if f.ioThreads {
		spec.IOThreadsPolicy = ptr.To(v1.IOThreadsPolicyAuto)
	}
	if f.fixedCPUs {
		spec.CPU.MaxSockets = ptr.To(s.cpus)
	}
	return spec
}

// labelsOf returns the labels that follow from the spec of an instance type, and those of every object.
func labelsOf(spec *v1beta1.VirtualMachineInstancetypeSpec) map[string]string {
	labels := commonLabels()
	labels[cpuLabel] = strconv.FormatUint(uint64(spec.CPU.Guest), 10)
	if spec.Memory.Hugepages != nil {
		labels[pagesLabel] = spec.Memory.Hugepages.PageSize
	}
	for label, set := range map[string]bool{
		dedicateLabel: ptr.Deref(spec.CPU.DedicatedCPUPlacement, false),
		isolateLabel:  ptr.Deref(spec.CPU.IsolateEmulatorThread, false),
		numaLabel:     spec.CPU.NUMA != nil,
		realtimeLabel: spec.CPU.Realtime != nil,
	} {
		if set {
			labels[label] = "true"
		}
	}
	return labels
}

// without returns the sizes except those with these names.
func without(sizes []size, names ...string) []size {
	return slices.DeleteFunc(slices.Clone(sizes), func(s size) bool { return slices.Contains(names, s.name) })
}

// family describes the instance types whose names have the same prefix. They differ only in their size.
type family struct {
	name  string
	class string
	// title, icon and description are shown by consoles. icon is a class of PatternFly's icon font.
	title, icon, description string
	sizes                    []size
	// pages are the huge pages of the guest's memory. There is an instance type for each combination of a size and one of
	// them. Empty means ordinary memory.
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

// prefix is the prefix of the keys of most labels and annotations.
const prefix = instancetype.GroupName + "/"

// Labels of every object.
const (
	// vendorLabel is the object's vendor. KubeVirt's metrics contain only the names of objects of known vendors.
	vendorLabel = prefix + "vendor"
	// releaseLabel is the release of common-instancetypes whose object has the same spec.
	releaseLabel = prefix + "common-instancetypes-version"
)

const (
	vendor  = "kubevirt.io"
	release = "v1.7.0"
)

func commonLabels() map[string]string {
	return map[string]string{vendorLabel: vendor, releaseLabel: release}
}
