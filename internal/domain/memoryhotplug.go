// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/resize"
)

// MemoryDeviceModel is libvirt's model of the device from which a running guest gets more memory.
const MemoryDeviceModel = "virtio-mem"

// memoryDeviceAlias is the alias of the device.
const memoryDeviceAlias = "ua-memory"

// Sizes of the blocks that a guest plugs, in KiB. KubeVirt's: a block has the size of a huge page of the guest's
// memory.
const (
	memoryBlockKiB     = 2 * 1024
	memoryHugeBlockKiB = 1024 * 1024
)

// configureMemoryHotplug sets the size up to which a guest can get more memory. The device for it is plugged when the
// guest first grows, see MemoryDevice: many guests never do. Memory devices belong to a NUMA cell, so the guest has
// one.
func configureMemoryHotplug(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	most := maxGuestKiB(vmi)
	if domain.Memory == nil || domain.CPU == nil || domain.CPU.Numa != nil || most <= domain.Memory.Value {
		return nil
	}
	domain.MaximumMemory = &libvirtxml.DomainMaxMemory{Value: most, Unit: "KiB"}
	cpus := "0"
	if domain.VCPU != nil && domain.VCPU.Value > 1 {
		cpus = fmt.Sprintf("0-%d", domain.VCPU.Value-1)
	}
	domain.CPU.Numa = &libvirtxml.DomainNuma{Cell: []libvirtxml.DomainCell{
		{ID: new(uint(0)), CPUs: cpus, Memory: domain.Memory.Value, Unit: domain.Memory.Unit},
	}}
	return nil
}

// maxGuestKiB returns the size up to which a guest can get more memory, or 0.
func maxGuestKiB(vmi *v1.VirtualMachineInstance) uint {
	memory := vmi.Spec.Domain.Memory
	if !resize.CanResizeMemory(vmi) || memory.MaxGuest.Sign() <= 0 {
		return 0
	}
	return toKiB(memory.MaxGuest)
}

// MemoryDevice returns the device that gives a running guest more memory than it had at its start. The guest takes from
// the device as much as is requested, up to maxGuest. Sizes are in KiB.
func MemoryDevice(vmi *v1.VirtualMachineInstance, atBoot, requested uint) *libvirtxml.DomainMemorydev {
	block := uint(memoryBlockKiB)
	if pages := vmi.Spec.Domain.Memory.Hugepages; pages != nil && pages.PageSize == "1Gi" {
		block = memoryHugeBlockKiB
	}
	size := maxGuestKiB(vmi) - min(atBoot, maxGuestKiB(vmi))
	return &libvirtxml.DomainMemorydev{
		Model: MemoryDeviceModel,
		Alias: &libvirtxml.DomainAlias{Name: memoryDeviceAlias},
		Target: &libvirtxml.DomainMemorydevTarget{
			Size:      &libvirtxml.DomainMemorydevTargetSize{Value: size, Unit: "KiB"},
			Node:      &libvirtxml.DomainMemorydevTargetNode{Value: 0},
			Block:     &libvirtxml.DomainMemorydevTargetBlock{Value: block, Unit: "KiB"},
			Requested: &libvirtxml.DomainMemorydevTargetRequested{Value: min(requested, size), Unit: "KiB"},
		},
	}
}
