// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrationpolicy

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

const (
	gib = 1 << 30
	// memoryBeside is for what migrates with a guest's memory: that of its display, firmware and devices.
	memoryBeside = gib
	// mostUnbacked is how much of what nobody has reserved counts: memory and disks that are larger than what the VMI requests for them.
	// Whoever writes a VMI can make those as large as they like.
	mostUnbacked = 64 * gib
	// defaultPerGiB is what a configuration that says nothing means. KubeVirt's (pkg/virt-config, defaults of migrations).
	defaultPerGiB = 150 * time.Second
)

// ImagePatience bounds the reading of a guest's images on both nodes, which comes before the copying. At 50 MB/s this is enough for 90 GB.
const ImagePatience = 30 * time.Minute

// PerGiB is how long each GiB of memory and disks may take by the configuration of a migration. 0 is forever.
func PerGiB(c *v1.VMIMConfigurationOptions) time.Duration {
	if c == nil || c.CompletionTimeoutPerGiB == nil {
		return defaultPerGiB
	}
	// Times beyond a year are as good as forever, and do not overflow.
	return time.Duration(min(max(*c.CompletionTimeoutPerGiB, 0), 365*24*3600)) * time.Second
}

// Longest is how long a guest of a VMI may be copied at most, whatever its launcher says, or 0 if there is no limit. One that stands
// still for the rest has twice its time.
func Longest(vmi *v1.VirtualMachineInstance, c *v1.VMIMConfigurationOptions) time.Duration {
	return 2 * Limit(MostToCopy(vmi), PerGiB(c))
}

// Limit is how long so many bytes may take.
func Limit(bytes uint64, perGiB time.Duration) time.Duration {
	n := max((bytes+gib-1)/gib, 1)
	if perGiB > 0 && n > uint64(math.MaxInt64/4/perGiB) {
		return math.MaxInt64 / 4
	}
	return perGiB * time.Duration(n)
}

// MostToCopy is how many bytes a migration of a VMI can have to copy at most, by its spec and its claims: memory, the disks that lie in
// the Pod, and the volumes that move. What is reserved counts in full, as it is really there: requested memory and storage, and claims.
func MostToCopy(vmi *v1.VirtualMachineInstance) uint64 {
	reserved, rest := split(memoryOf(vmi), requested(vmi, corev1.ResourceMemory, podspec.GuestMemory(vmi)))
	claims, inPod := disksOf(vmi)
	backed, beyond := split(inPod, requested(vmi, corev1.ResourceEphemeralStorage, resource.Quantity{}))
	return memoryBeside + reserved + claims + backed + min(rest+beyond, mostUnbacked)
}

// split divides a size into what is reserved for it and the rest.
func split(size, reserved uint64) (backed, rest uint64) {
	backed = min(size, reserved)
	return backed, size - backed
}

// requested is how much of a resource the VMI asks for. A limit is a request, too, where there is none.
func requested(vmi *v1.VirtualMachineInstance, name corev1.ResourceName, otherwise resource.Quantity) uint64 {
	resources := &vmi.Spec.Domain.Resources
	for _, list := range []corev1.ResourceList{resources.Requests, resources.Limits} {
		if q, ok := list[name]; ok && q.Sign() > 0 {
			return bytesOf(q)
		}
	}
	return bytesOf(otherwise)
}

func memoryOf(vmi *v1.VirtualMachineInstance) uint64 {
	size := bytesOf(podspec.GuestMemory(vmi))
	if m := vmi.Spec.Domain.Memory; m != nil && m.MaxGuest != nil {
		size = max(size, bytesOf(*m.MaxGuest))
	}
	return size
}

// disksOf are the sizes of the claims whose content moves, and of the disks in the Pod.
func disksOf(vmi *v1.VirtualMachineInstance) (claims, inPod uint64) {
	moved := map[string]*v1.StorageMigratedVolumeInfo{}
	for i := range vmi.Status.MigratedVolumes {
		moved[vmi.Status.MigratedVolumes[i].VolumeName] = &vmi.Status.MigratedVolumes[i]
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		m := moved[v.Name]
		switch {
		case m != nil:
			size, known := claimSize(m.SourcePVCInfo, m.DestinationPVCInfo)
			if !known {
				inPod += mostUnbacked
			}
			claims += size
		case v.EmptyDisk != nil:
			inPod += bytesOf(v.EmptyDisk.Capacity)
		case v.HostDisk != nil && v.HostDisk.Capacity.Sign() > 0:
			inPod += bytesOf(v.HostDisk.Capacity)
		case v.ContainerDisk != nil, v.HostDisk != nil, v.Ephemeral != nil:
			// How large an image is, or what was written above one, nobody says.
			inPod += mostUnbacked
		}
	}
	return claims, inPod
}

// claimSize is the larger of two claims' sizes, if one is known. What a claim asks for beyond its capacity is not there yet.
func claimSize(claims ...*v1.PersistentVolumeClaimInfo) (size uint64, known bool) {
	for _, claim := range claims {
		if claim == nil {
			continue
		}
		capacity, ok := claim.Capacity[corev1.ResourceStorage]
		if ok {
			size, known = max(size, bytesOf(capacity)), true
		}
	}
	return size, known
}

// bytesOf is a quantity in bytes, of at most a pebibyte: sums do not overflow.
func bytesOf(q resource.Quantity) uint64 {
	return uint64(min(max(q.Value(), 0), 1<<50))
}
