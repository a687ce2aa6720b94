// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"math"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// setVolumes sets the device name and the size of each volume. It keeps what virt-controller wrote about claims before it
// assigned the VMI.
func setVolumes(s *scope) {
	before := map[string]v1.VolumeStatus{}
	for _, v := range s.VMI.Status.VolumeStatus {
		before[v.Name] = v
	}
	list := make([]v1.VolumeStatus, 0, len(s.VMI.Spec.Volumes)+1)
	if state, found := stateClaim(s.VMI); found {
		list = append(list, state)
	}
	for i := range s.VMI.Status.VolumeStatus {
		// virt-controller adds hotplugged volumes, and removes them once the launcher Pod does not have them.
		if v := &s.VMI.Status.VolumeStatus[i]; vmistatus.IsHotplugged(v) {
			if isAttaching(v) {
				list = append(list, *v) // The guest may have it already, see mountEarly.
				continue
			}
			v.Target = s.DiskTarget(v.Name)
			if size := s.cache.sizes.of(v.Target); size > 0 && size <= math.MaxInt64 {
				v.Size = int64(size)
			}
			list = append(list, *v)
		}
	}
	for i := range s.VMI.Spec.Volumes {
		if isHotplugged(s.VMI, s.Pod, &s.VMI.Spec.Volumes[i]) {
			continue
		}
		name := s.VMI.Spec.Volumes[i].Name
		status := before[name]
		status.Name = name
		if target := s.DiskTarget(name); target != "" {
			status.Target = target
		}
		switch size := s.cache.sizes.of(status.Target); {
		case size > 0 && size <= math.MaxInt64:
			status.Size = int64(size)
		case s.disks != nil && s.disks.Disks[name].CapacityBytes > 0:
			status.Size = s.disks.Disks[name].CapacityBytes
		}
		list = append(list, status)
	}
	vmistatus.SortVolumes(list)
	s.VMI.Status.VolumeStatus = list
}

// stateClaim returns what virt-controller wrote about the claim with the VM's persistent state, which is not a volume of the
// spec.
func stateClaim(vmi *v1.VirtualMachineInstance) (v1.VolumeStatus, bool) {
	if !vmi.Spec.HasPersistentState() {
		return v1.VolumeStatus{}, false
	}
	volumes := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		volumes[vmi.Spec.Volumes[i].Name] = true
	}
	for _, status := range vmi.Status.VolumeStatus {
		claim := status.PersistentVolumeClaimInfo
		if claim != nil && claim.ClaimName == status.Name && !volumes[status.Name] && !vmistatus.IsHotplugged(&status) {
			return status, true
		}
	}
	return v1.VolumeStatus{}, false
}
