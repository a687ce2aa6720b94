// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const mebibyte = 1 << 20

// hardLimitMargin is what a guest needs beside everything else where its memory has a limit.
const hardLimitMargin = 100 * mebibyte

// Names of the parts that are processes of their own.
const (
	PartLauncher = "virt-launcher"
	PartLibvirtd = "libvirtd"
	PartQEMU     = "qemu"
	PartSWTPM    = "swtpm"
	// PartConsoleLog has a container of its own, and its memory is no part of MemoryOverhead.
	PartConsoleLog = "virt-tail"
)

// OverheadPart is one reason for which a launcher Pod needs more memory than its guest has.
type OverheadPart struct {
	// Name says what takes the memory.
	Name string
	// Bytes is how much it takes.
	Bytes int64
}

type overheadRule struct {
	name  string
	bytes func(vmi *v1.VirtualMachineInstance, cfg Config) int64
}

// overheadRules are the whole overhead. What they stand for is proportional memory (PSS) beyond guest RAM, measured
// with the trixie image (libvirt 11.3, QEMU 10.0) by `make bench-start`, which compares each run with these constants.
var overheadRules = []overheadRule{
	// 6.9 to 7.3 MiB.
	{PartLauncher, always(8 * mebibyte)},
	// 21.7 to 21.9 MiB with the image's capabilities of QEMU, 6 MiB more where libvirtd finds them out itself (KVM).
	{PartLibvirtd, func(_ *v1.VirtualMachineInstance, cfg Config) int64 {
		return 24*mebibyte + when(!cfg.UseEmulation, 6*mebibyte)
	}},
	// A guest with 1 vCPU, 1 GiB and four virtio devices on q35: 81.1 MiB, less the translation cache and a vCPU. Of
	// that 18 MiB are text and read-only data, 10 MiB heap, 2 MiB the part of the frame buffer that text needs.
	{PartQEMU, always(46 * mebibyte)},
	// 89.6 MiB with 4 vCPUs against 81.1 MiB with one: a thread's stack, its malloc arena, its CPU state.
	{"vcpus", func(vmi *v1.VirtualMachineInstance, _ Config) int64 { return VCPUs(vmi) * 3 * mebibyte }},
	// The guest's memory is mapped in 4 KiB pages with an entry of 8 bytes each: one 512th of it, where the kernel has
	// no huge pages to give. It is the kernel's memory and in no PSS, but the Pod pays for it.
	{"page tables", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		memory := GuestMemory(vmi)
		return memory.Value() / 512
	}},
	// The cache of translated code. A Linux kernel and its first programs fill it: 32.0 of 32 MiB.
	{"translation cache", func(_ *v1.VirtualMachineInstance, cfg Config) int64 {
		return when(cfg.UseEmulation, launcherpod.TranslationCacheMiB*mebibyte)
	}},
	// A graphical guest draws in 1280x800 pixels of 4 bytes, and QEMU keeps a copy for VNC: 2 times 3.9 MiB of the 16
	// that the card has, less the 2 MiB that text needs and QEMU's part has.
	{"video", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return when(ptr.Deref(vmi.Spec.Domain.Devices.AutoattachGraphicsDevice, true), 6*mebibyte)
	}},
	// 91.4 MiB with OVMF against 81.1 MiB with SeaBIOS: 4 MiB of flash, mapped and copied, and its variables.
	{"efi", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return when(vmi.IsBootloaderEFI(), 12*mebibyte)
	}},
	// 5.8 MiB, and 7.9 MiB where no other VM of the node shares its libraries.
	{PartSWTPM, func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return when(vmi.Spec.HasTPM(), 8*mebibyte)
	}},
	// AAVMF's flash devices are padded to 64 MiB each. Source: KubeVirt reserves 128 MiB for the same reason.
	{"arm64", func(vmi *v1.VirtualMachineInstance, cfg Config) int64 {
		return when(architecture(vmi, cfg) == "arm64", 128*mebibyte)
	}},
	// Under a hard limit every peak counts: page cache of disks and bursts of device emulation. Source: KubeVirt adds
	// 100 MiB for dedicated CPUs and Guaranteed Pods.
	{"hard limit", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		_, limited := vmi.Spec.Domain.Resources.Limits[corev1.ResourceMemory]
		return when(limited || vmi.IsCPUDedicated(), hardLimitMargin)
	}},
	// A probe by the guest's agent is a process for a moment: 13.6 MiB resident at its peak, of which at least 6 MiB are
	// text and read-only data that the launcher has in memory already. Both probes can run at the same time.
	{"probes", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return int64(agentProbes(vmi)) * 8 * mebibyte
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

// MemoryOverheadParts is what the launcher Pod needs beyond the guest's memory, by what takes it, before the cluster's
// ratio.
func MemoryOverheadParts(vmi *v1.VirtualMachineInstance, cfg Config) []OverheadPart {
	var parts []OverheadPart
	for _, rule := range overheadRules {
		if bytes := rule.bytes(vmi, cfg); bytes > 0 {
			parts = append(parts, OverheadPart{rule.name, bytes})
		}
	}
	return parts
}

// MemoryOverhead is what the launcher Pod needs beyond the guest's memory.
func MemoryOverhead(vmi *v1.VirtualMachineInstance, cfg Config) resource.Quantity {
	var sum int64
	for _, part := range MemoryOverheadParts(vmi, cfg) {
		sum += part.Bytes
	}
	if ratio := cfg.AdditionalGuestMemoryOverheadRatio; ratio > 1 {
		sum = int64(math.Ceil(float64(sum) * ratio))
	}
	return *resource.NewQuantity(sum, resource.BinarySI)
}
