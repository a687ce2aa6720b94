// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package policy

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
	// extraMemory is for the memory of the display, the firmware and devices, which is also transferred.
	extraMemory = gib
	// maxUnreserved bounds memory and disks that exceed the VMI's requests, because the author of a VMI can choose any size.
	maxUnreserved = 64 * gib
	// defaultPerGiB is the default of completionTimeoutPerGiB. KubeVirt's (pkg/virt-config, defaults of migrations).
	defaultPerGiB = 150 * time.Second
)

// ImageTimeout bounds the comparison of a guest's images on both nodes before the transfer. It suffices for 90 GB at 50 MB/s.
const ImageTimeout = 30 * time.Minute

// PerGiB returns how long the transfer of each GiB of memory and disks may take. 0 means that there is no limit.
func PerGiB(c *v1.VMIMConfigurationOptions) time.Duration {
	if c == nil || c.CompletionTimeoutPerGiB == nil {
		return defaultPerGiB
	}
	// More than a year counts as a year, so that the duration does not overflow.
	return time.Duration(min(max(*c.CompletionTimeoutPerGiB, 0), 365*24*3600)) * time.Second
}

// MaxDuration returns how long the transfer of a VMI's guest may take regardless of what its launcher reports; 0 means that there is no
// limit. It is twice the limit, because a transfer with a paused guest may take twice as long.
func MaxDuration(vmi *v1.VirtualMachineInstance, c *v1.VMIMConfigurationOptions) time.Duration {
	return 2 * Limit(MaxBytes(vmi), PerGiB(c))
}

// Limit returns how long the transfer of a number of bytes may take. 0 means that there is no limit.
func Limit(bytes uint64, perGiB time.Duration) time.Duration {
	n := max((bytes+gib-1)/gib, 1)
	if perGiB > 0 && n > uint64(math.MaxInt64/4/perGiB) {
		return math.MaxInt64 / 4
	}
	return perGiB * time.Duration(n)
}

// MaxBytes returns the maximum number of bytes of the transfer of a VMI's guest, according to its spec and its claims: memory, the disks in
// the Pod, and the volumes that migrate. Requested memory and storage, and claims, count in full.
func MaxBytes(vmi *v1.VirtualMachineInstance) uint64 {
	reserved, rest := split(memoryOf(vmi), requested(vmi, corev1.ResourceMemory, podspec.GuestMemory(vmi)))
	claims, inPod := disksOf(vmi)
	backed, beyond := split(inPod, requested(vmi, corev1.ResourceEphemeralStorage, resource.Quantity{}))
	return extraMemory + reserved + claims + backed + min(rest+beyond, maxUnreserved)
}

// split divides a size into the reserved part and the rest.
func split(size, reserved uint64) (backed, rest uint64) {
	backed = min(size, reserved)
	return backed, size - backed
}

// requested returns how much of a resource the VMI requests. A limit without a request counts as a request.
func requested(vmi *v1.VirtualMachineInstance, name corev1.ResourceName, otherwise resource.Quantity) uint64 {
	resources := &vmi.Spec.Domain.Resources
	for _, list := range []corev1.ResourceList{resources.Requests, resources.Limits} {
		if q, ok := list[name]; ok && q.Sign() > 0 {
			return bytesOf(q)
		}
	}
	return bytesOf(otherwise)
}

// memoryOf returns how much memory the guest has or is to have. What the agent reports counts up to the limit in the spec.
func memoryOf(vmi *v1.VirtualMachineInstance) uint64 {
	size := bytesOf(podspec.GuestMemory(vmi))
	if m, has := vmi.Spec.Domain.Memory, vmi.Status.Memory; m != nil && m.MaxGuest != nil && has != nil && has.GuestCurrent != nil {
		size = max(size, min(bytesOf(*has.GuestCurrent), bytesOf(*m.MaxGuest)))
	}
	return size
}

// disksOf returns the sizes of the claims whose content is transferred, and of the disks in the Pod.
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
				inPod += maxUnreserved
			}
			claims += size
		case v.EmptyDisk != nil:
			inPod += bytesOf(v.EmptyDisk.Capacity)
		case v.HostDisk != nil && v.HostDisk.Capacity.Sign() > 0:
			inPod += bytesOf(v.HostDisk.Capacity)
		case v.ContainerDisk != nil, v.HostDisk != nil, v.Ephemeral != nil:
			// The size of an image, or of the data that was written on top of it, is unknown.
			inPod += maxUnreserved
		}
	}
	return claims, inPod
}

// claimSize returns the largest capacity of the claims, and whether any is known. Requests beyond the capacity do not count.
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

// bytesOf returns a quantity in bytes, at most a pebibyte so that sums do not overflow.
func bytesOf(q resource.Quantity) uint64 {
	return uint64(min(max(q.Value(), 0), 1<<50))
}
