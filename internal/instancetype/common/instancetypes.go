// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package common

import (
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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
