// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const mebibyte = 1 << 20

// hardLimitMargin is the additional overhead of a Pod with a memory limit.
const hardLimitMargin = 100 * mebibyte

// Names of the parts that are processes.
const (
	PartLauncher = "virt-launcher"
	PartLibvirtd = "libvirtd"
	PartQEMU     = "qemu"
	PartSWTPM    = "swtpm"
	// PartConsoleLog has a container of its own. Its memory is not part of MemoryOverhead.
	PartConsoleLog = "virt-tail"
)

// OverheadPart is a part of the memory that a launcher Pod needs beside the guest's.
type OverheadPart struct {
	// Name is the name of the part, such as a process.
	Name string
	// Bytes is its size.
	Bytes int64
}

type overheadRule struct {
	name  string
	bytes func(vmi *v1.VirtualMachineInstance, cfg Config) int64
}

// overheadRules compute the parts of the overhead. Their constants are proportional memory (PSS) without guest RAM,
// measured with the trixie image (libvirt 11.3, QEMU 10.0). `make bench-start` compares its measurements with them.
var overheadRules = []overheadRule{
	// 6.9 to 7.3 MiB.
	{PartLauncher, always(8 * mebibyte)},
	// 21.7 to 21.9 MiB with the cached QEMU capabilities of the image, 6 MiB more if libvirtd probes them (KVM).
	{PartLibvirtd, func(_ *v1.VirtualMachineInstance, cfg Config) int64 {
		return 24*mebibyte + when(!cfg.UseEmulation, 6*mebibyte)
	}},
	// A guest with 1 vCPU, 1 GiB and four virtio devices on q35: 81.1 MiB, minus the translation cache and a vCPU. 18 MiB
	// are text and read-only data, 10 MiB heap, and 2 MiB the part of the frame buffer for text mode.
	{PartQEMU, always(46 * mebibyte)},
	// 89.6 MiB with 4 vCPUs against 81.1 MiB with one: a thread's stack, its malloc arena, its CPU state.
	{"vcpus", func(vmi *v1.VirtualMachineInstance, _ Config) int64 { return times(VCPUs(vmi), 3*mebibyte) }},
	// Without transparent huge pages, each 4 KiB page of the guest needs an entry of 8 bytes: 1/512 of the memory. Page
	// tables are kernel memory. They are not part of PSS, but count against the Pod's limit.
	{"page tables", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return valueOf(GuestMemory(vmi)) / 512
	}},
	// The cache of translated code. A Linux kernel and its first programs fill it: 32.0 of 32 MiB.
	{"translation cache", func(_ *v1.VirtualMachineInstance, cfg Config) int64 {
		return when(cfg.UseEmulation, launcherpod.TranslationCacheMiB*mebibyte)
	}},
	// A graphical guest uses 1280x800 pixels of 4 bytes, and QEMU keeps a copy for VNC: 2 times 3.9 MiB, minus the 2 MiB
	// for text mode that QEMU's part includes.
	{"video", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return when(ptr.Deref(vmi.Spec.Domain.Devices.AutoattachGraphicsDevice, true), 6*mebibyte)
	}},
	// 91.4 MiB with OVMF against 81.1 MiB with SeaBIOS: 4 MiB of flash, mapped and copied, and its variables.
	{"efi", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return when(vmi.IsBootloaderEFI(), 12*mebibyte)
	}},
	// 5.8 MiB, or 7.9 MiB if no other VM of the node shares its libraries.
	{PartSWTPM, func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return when(vmi.Spec.HasTPM(), 8*mebibyte)
	}},
	// AAVMF's flash devices are padded to 64 MiB each. Source: KubeVirt reserves 128 MiB for the same reason.
	{"arm64", func(vmi *v1.VirtualMachineInstance, cfg Config) int64 {
		return when(architecture(vmi, cfg) == "arm64", 128*mebibyte)
	}},
	// With a hard limit, peaks count: page cache of disks and bursts of device emulation. Source: KubeVirt adds
	// 100 MiB for dedicated CPUs and Guaranteed Pods.
	{"hard limit", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		_, limited := vmi.Spec.Domain.Resources.Limits[corev1.ResourceMemory]
		return when(limited || vmi.IsCPUDedicated(), hardLimitMargin)
	}},
	// A probe by the guest agent is a short process: 13.6 MiB resident at its peak, of which at least 6 MiB are text and
	// read-only data that it shares with the launcher. Both probes can run at the same time. The startup probe of a
	// migration's target is such a process, too.
	{"probes", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		return int64(probeProcesses(vmi)) * 8 * mebibyte
	}},
	// The user's reservation.
	{"reservedOverhead", func(vmi *v1.VirtualMachineInstance, _ Config) int64 {
		memory := vmi.Spec.Domain.Memory
		if memory == nil || memory.ReservedOverhead == nil || memory.ReservedOverhead.AddedOverhead == nil {
			return 0
		}
		return max(valueOf(*memory.ReservedOverhead.AddedOverhead), 0)
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

// MemoryOverheadParts returns the parts of the memory that the launcher Pod needs beside the guest's, without the
// cluster's ratio.
func MemoryOverheadParts(vmi *v1.VirtualMachineInstance, cfg Config) []OverheadPart {
	var parts []OverheadPart
	for _, rule := range overheadRules {
		if bytes := rule.bytes(vmi, cfg); bytes > 0 {
			parts = append(parts, OverheadPart{rule.name, bytes})
		}
	}
	return parts
}

// MemoryOverhead returns the memory that the launcher Pod needs beside the guest's.
func MemoryOverhead(vmi *v1.VirtualMachineInstance, cfg Config) resource.Quantity {
	var sum int64
	for _, part := range MemoryOverheadParts(vmi, cfg) {
		sum = plus(sum, part.Bytes)
	}
	if ratio := cfg.AdditionalGuestMemoryOverheadRatio; ratio > 1 {
		sum = whole(math.Ceil(float64(sum) * ratio))
	}
	return *resource.NewQuantity(sum, resource.BinarySI)
}

// plus, times and whole compute with sizes that a user determines. They return the largest number where the result
// would be larger. No argument is negative.
func plus(a, b int64) int64 { return min(a, math.MaxInt64-b) + b }

func times(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

func whole(number float64) int64 {
	if number >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(number)
}

// valueOf returns the value of a quantity, or the largest number if it is larger: Value then returns any number.
func valueOf(q resource.Quantity) int64 {
	if q.CmpInt64(math.MaxInt64) > 0 {
		return math.MaxInt64
	}
	return q.Value()
}

// Fit changes the resources of a container of Vireo's own in a Pod by as little as the LimitRanges of the namespace
// demand, and reports whether it changed any. A user can change those of a guest, and not these.
func Fit(pod *corev1.Pod, container string, ranges []corev1.LimitRange) bool {
	at := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	if at < 0 {
		return false
	}
	types := []corev1.LimitType{corev1.LimitTypeContainer}
	if len(pod.Spec.Containers) == 1 {
		types = append(types, corev1.LimitTypePod)
	}
	resources := &pod.Spec.Containers[at].Resources
	before := resources.DeepCopy()
	fit(*resources, ranges, equality.Semantic.DeepEqual(before.Requests, before.Limits), types...)
	return !equality.Semantic.DeepEqual(before, resources)
}

// fit changes the resources of a container so that they are within the limits of some types, if that is possible.
func fit(
	resources corev1.ResourceRequirements, ranges []corev1.LimitRange, guaranteed bool, types ...corev1.LimitType,
) {
	for i := range ranges {
		for j := range ranges[i].Spec.Limits {
			if item := &ranges[i].Spec.Limits[j]; slices.Contains(types, item.Type) {
				fitItem(resources, item)
			}
		}
	}
	for name, limit := range resources.Limits {
		// Every container of a Guaranteed Pod requests its limits, and none may request more.
		if request := resources.Requests[name]; guaranteed || request.Cmp(limit) > 0 {
			resources.Requests[name] = limit
		}
	}
}

func fitItem(resources corev1.ResourceRequirements, item *corev1.LimitRangeItem) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		request := resources.Requests[name]
		limit, limited := resources.Limits[name]
		ratio, rated := item.MaxLimitRequestRatio[name]
		if least, ok := item.Min[name]; ok && request.Cmp(least) < 0 {
			request = least
		}
		if most, ok := item.Max[name]; ok && limit.Cmp(most) > 0 {
			limit = most
		}
		if limit.Cmp(request) < 0 {
			limit = request
		}
		if rated && ratio.MilliValue() > 0 {
			// In thousandths, and rounded up: the API server compares the exact ratio.
			least := (limit.MilliValue()*milliPerCPU + ratio.MilliValue() - 1) / ratio.MilliValue()
			if name == corev1.ResourceMemory {
				least = (least + milliPerCPU - 1) / milliPerCPU * milliPerCPU
			}
			if request.MilliValue() < least {
				request = *resource.NewMilliQuantity(least, request.Format)
			}
		}
		resources.Requests[name] = request
		if limited || rated { // A ratio demands a limit.
			resources.Limits[name] = limit
		}
	}
}
