// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

const (
	// memoryBeside is for what migrates with a guest's memory: that of its display, firmware and devices.
	memoryBeside = 1 << 30
	// unknownDisk is for a disk of which the VMI does not say how large it is, such as that of an image.
	unknownDisk = 128 << 30
)

// mostToCopy is how many bytes a migration of a VMI can have to copy at most, by its spec and its claims: memory, the disks that lie in
// the Pod, and the volumes that move.
func mostToCopy(vmi *v1.VirtualMachineInstance) uint64 {
	memory := podspec.GuestMemory(vmi)
	if m := vmi.Spec.Domain.Memory; m != nil && m.MaxGuest != nil && m.MaxGuest.Cmp(memory) > 0 {
		memory = *m.MaxGuest
	}
	most := bytesOf(memory) + memoryBeside
	moved := map[string]*v1.StorageMigratedVolumeInfo{}
	for i := range vmi.Status.MigratedVolumes {
		moved[vmi.Status.MigratedVolumes[i].VolumeName] = &vmi.Status.MigratedVolumes[i]
	}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		switch m := moved[v.Name]; {
		case m != nil:
			most += claimSize(m.SourcePVCInfo, m.DestinationPVCInfo)
		case v.EmptyDisk != nil:
			most += bytesOf(v.EmptyDisk.Capacity)
		case v.HostDisk != nil && v.HostDisk.Capacity.Sign() > 0:
			most += bytesOf(v.HostDisk.Capacity)
		case v.ContainerDisk != nil, v.HostDisk != nil, v.Ephemeral != nil:
			most += unknownDisk
		}
	}
	return most
}

// claimSize is the larger of two claims' sizes.
func claimSize(claims ...*v1.PersistentVolumeClaimInfo) uint64 {
	var size uint64
	for _, claim := range claims {
		if claim != nil {
			size = max(size, bytesOf(claim.Capacity[corev1.ResourceStorage]), bytesOf(claim.Requests[corev1.ResourceStorage]))
		}
	}
	if size == 0 {
		return unknownDisk
	}
	return size
}

// bytesOf is a quantity in bytes, of at most a pebibyte: sums do not overflow.
func bytesOf(q resource.Quantity) uint64 {
	return uint64(min(max(q.Value(), 0), 1<<50))
}
