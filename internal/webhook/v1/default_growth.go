// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// maxDefaultVCPUs limits the default of cpu.maxSockets: with more vCPUs, a guest on q35 needs an IOMMU with extended
// interrupts. Source: libvirt src/qemu/qemu_validate.c, QEMU_MAX_VCPUS_WITHOUT_EIM. KubeVirt's limit is 512.
const maxDefaultVCPUs = 255

// maxDefaultGuest limits the default of memory.maxGuest to half of what a guest CPU with 40 bits of addresses can use,
// which is QEMU's default: the addresses above the memory are for PCI devices. KubeVirt has no limit.
const maxDefaultGuest = 512 << 30

// defaultGrowth sets how far the guest of a VM can grow while it runs. A VMI without a VM cannot change; for it, the
// larger tables of QEMU and the guest would be useless.
func defaultGrowth(vmi *v1.VirtualMachineInstance, config clusterconfig.Config) {
	if config.RolloutStrategy != v1.VMRolloutStrategyLiveUpdate || vmistatus.VMOf(vmi) == nil ||
		vmi.Spec.Architecture == clusterconfig.ArchARM64 {
		return
	}
	defaultMaxSockets(vmi.Spec.Domain.CPU, config.LiveUpdate)
	defaultMaxGuest(&vmi.Spec, config.LiveUpdate)
}

// defaultMaxSockets sets the sockets up to which some can be added. With the node's NUMA topology, the cells of all
// vCPUs are those of the CPUs that the Pod has at the start.
func defaultMaxSockets(cpu *v1.CPU, limits clusterconfig.LiveUpdate) {
	if cpu.MaxSockets != 0 || cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil {
		return
	}
	sockets := uint64(limits.MaxSockets)
	if sockets == 0 {
		sockets = uint64(cpu.Sockets) * uint64(limits.MaxRatio)
	}
	sockets = min(sockets, maxDefaultVCPUs/max(uint64(cpu.Cores)*uint64(cpu.Threads), 1))
	cpu.MaxSockets = max(uint32(sockets), cpu.Sockets)
}

// defaultMaxGuest sets the memory up to which some can be added. Like KubeVirt, it leaves it out if the memory cannot
// change.
func defaultMaxGuest(spec *v1.VirtualMachineInstanceSpec, limits clusterconfig.LiveUpdate) {
	memory := spec.Domain.Memory
	if memory == nil || memory.Guest == nil || memory.MaxGuest != nil {
		return
	}
	most := resource.NewQuantity(maxDefaultGuest, resource.BinarySI)
	switch guest := memory.Guest.Value(); {
	case limits.MaxGuest != nil:
		most = ptr.To(limits.MaxGuest.DeepCopy())
	case guest <= maxDefaultGuest/int64(max(limits.MaxRatio, 1)):
		most.Set(guest * int64(max(limits.MaxRatio, 1)))
	}
	if resize.CheckMemory(spec, spec.Architecture, *memory.Guest, *most) == nil {
		memory.MaxGuest = most
	}
}
