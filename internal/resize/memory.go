// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package resize

import (
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// minGuest is the least memory of a guest whose memory can change. KubeVirt's.
const minGuest = 1 << 30

// MemoryProblem is why the memory of a guest cannot change.
type MemoryProblem struct {
	// Missing reports whether memory.guest is missing, and OfLimit whether memory.maxGuest is wrong, and not memory.guest.
	Missing, OfLimit bool
	// Message is KubeVirt's.
	Message string
}

// CheckMemory returns why the memory of a guest with a spec cannot change, or nil. guest is its memory, most the memory that it can
// grow to. Source: kubevirt/kubevirt pkg/liveupdate/memory.
func CheckMemory(spec *v1.VirtualMachineInstanceSpec, arch string, guest, most resource.Quantity) *MemoryProblem {
	cpu, block, multiple := spec.Domain.CPU, int64(MemoryBlock), "2Mi"
	if memory := spec.Domain.Memory; memory != nil && memory.Hugepages != nil && memory.Hugepages.PageSize == "1Gi" {
		block, multiple = 1<<30, "1Gi"
	}
	switch {
	case cpu != nil && cpu.Realtime != nil:
		return &MemoryProblem{Message: "Memory hotplug is not compatible with realtime VMs"}
	case cpu != nil && cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil:
		return &MemoryProblem{Message: "Memory hotplug is not compatible with guest mapping passthrough"}
	case spec.Domain.LaunchSecurity != nil:
		return &MemoryProblem{Message: "Memory hotplug is not compatible with encrypted VMs"}
	case guest.IsZero():
		return &MemoryProblem{Missing: true, Message: "Guest memory must be configured when memory hotplug is enabled"}
	case guest.Cmp(most) > 0:
		return &MemoryProblem{Message: "Guest memory is greater than the configured maxGuest memory"}
	case guest.Value()%block != 0:
		return &MemoryProblem{Message: "Guest memory must be " + multiple + " aligned"}
	case most.Value()%block != 0:
		return &MemoryProblem{OfLimit: true, Message: "MaxGuest must be " + multiple + " aligned"}
	case arch != "amd64" && arch != "arm64":
		return &MemoryProblem{Message: "Memory hotplug is only available for x86_64 and arm64 VMs"}
	case guest.Value() < minGuest:
		return &MemoryProblem{Message: "Memory hotplug is only available for VMs with at least 1Gi of guest memory"}
	default:
		return nil
	}
}
