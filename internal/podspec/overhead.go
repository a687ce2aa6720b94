// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

const mebibyte = 1 << 20

// overheadPart is one reason for which a launcher Pod needs more memory than its guest has.
type overheadPart struct {
	name  string
	bytes func(vmi *v1.VirtualMachineInstance, cfg Config) int64
}

// overheadParts is the whole overhead. What they stand for is proportional memory (PSS) beyond guest RAM; make
// bench-start measures it, and checks that it stays below the sum.
var overheadParts = []overheadPart{
	// virt-launcher itself: its target is 15 MB of resident memory.
	{"virt-launcher", always(15 * mebibyte)},
	// libvirtd with the QEMU and storage drivers: 20 to 28 MB PSS, 31 to 39 MB RSS in trixie (libvirt 11.3).
	{"libvirtd", always(40 * mebibyte)},
	// QEMU's text, heap, device models and caches with a handful of virtio devices on q35.
	{"qemu", always(38 * mebibyte)},
	// A vCPU's thread: stack, kvm_run page and its part of the translation or shadow structures.
	{"vcpus", func(vmi *v1.VirtualMachineInstance, _ Config) int64 { return VCPUs(vmi) * 3 * mebibyte }},
	// The guest's memory is mapped in 4 KiB pages with an entry of 8 bytes each: one 512th of it.
	{"page tables", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		memory := GuestMemory(vmi)
		return memory.Value() / 512
	}},
	// The frame buffer of the default VGA (16 MiB) is allocated as the guest draws.
	{"video", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return when(ptr.Deref(vmi.Spec.Domain.Devices.AutoattachGraphicsDevice, true), 16*mebibyte)
	}},
	// OVMF's flash: 4 MiB of code and variables, mapped and copied.
	{"efi", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return when(vmi.IsBootloaderEFI(), 8*mebibyte)
	}},
	// AAVMF's flash devices are padded to 64 MiB each. Source: KubeVirt reserves 128 MiB for the same reason.
	{"arm64", func(vmi *v1.VirtualMachineInstance, cfg Config) int64 {
		return when(architecture(vmi, cfg) == "arm64", 128*mebibyte)
	}},
	// Under a hard limit every peak counts: page cache of disks and bursts of device emulation. Source: KubeVirt adds
	// 100 MiB for dedicated CPUs and Guaranteed Pods.
	{"hard limit", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		_, limited := vmi.Spec.Domain.Resources.Limits[corev1.ResourceMemory]
		return when(limited || vmi.IsCPUDedicated(), 100*mebibyte)
	}},
	// What the user asked to reserve beyond.
	{"reservedOverhead", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		memory := vmi.Spec.Domain.Memory
		if memory == nil || memory.ReservedOverhead == nil || memory.ReservedOverhead.AddedOverhead == nil {
			return 0
		}
		return memory.ReservedOverhead.AddedOverhead.Value()
	}},
}

func always(bytes int64) func(*v1.VirtualMachineInstance, Config) int64 {
	return func(*v1.VirtualMachineInstance, Config) int64 { return bytes }
}

func when(condition bool, bytes int64) int64 {
	if condition {
		return bytes
	}
	return 0
}

// MemoryOverhead is what the launcher Pod needs beyond the guest's memory.
func MemoryOverhead(vmi *v1.VirtualMachineInstance, cfg Config) resource.Quantity {
	var sum int64
	for _, part := range overheadParts {
		sum += part.bytes(vmi, cfg)
	}
	if ratio := cfg.AdditionalGuestMemoryOverheadRatio; ratio > 1 {
		sum = int64(math.Ceil(float64(sum) * ratio))
	}
	return *resource.NewQuantity(sum, resource.BinarySI)
}
