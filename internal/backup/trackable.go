// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Trackable returns the volumes of a VMI whose disks can have an overlay, with which QEMU tracks their changed blocks: hard disks on claims
// and hostDisks that only this guest writes to. Volumes that were plugged into the running guest, and those that are being migrated to other
// claims, have none until the next start or migration.
func Trackable(vmi *v1.VirtualMachineInstance) []string {
	var names []string
	for i := range vmi.Spec.Volumes {
		volume := &vmi.Spec.Volumes[i]
		status := vmistatus.FindVolume(&vmi.Status, volume.Name)
		switch {
		case !IsStored(volume), status != nil && vmistatus.IsHotplugged(status), vmistatus.Migrated(&vmi.Status, volume.Name) != nil,
			!isTrackable(vmistatus.FindDisk(&vmi.Spec, volume.Name)):
		default:
			names = append(names, volume.Name)
		}
	}
	return names
}

// isTrackable reports whether a volume has a disk, or nil, that is a hard disk to which this guest writes, and no other one.
func isTrackable(d *v1.Disk) bool {
	return d != nil && IsWritten(d) && d.LUN == nil && !ptr.Deref(d.Shareable, false)
}

// IsStored reports whether a volume is one of those of which backups have copies: a claim, or a hostDisk.
func IsStored(v *v1.Volume) bool { return v.WrittenClaim() != "" || v.HostDisk != nil }

// IsWritten reports whether the guest can write to a disk. A backup has no others: nothing of the guest is on them.
func IsWritten(d *v1.Disk) bool {
	return d.CDRom == nil && (d.Disk == nil || !d.Disk.ReadOnly) && (d.LUN == nil || !d.LUN.ReadOnly)
}

// Disks returns the volumes of claims and hostDisks to whose disks the guest can write: those of which a backup has copies, unless it fails
// because of one of them.
func Disks(spec *v1.VirtualMachineInstanceSpec) []string {
	var names []string
	for i := range spec.Volumes {
		volume := &spec.Volumes[i]
		if disk := vmistatus.FindDisk(spec, volume.Name); IsStored(volume) && disk != nil && IsWritten(disk) {
			names = append(names, volume.Name)
		}
	}
	return names
}

// WantsTracking reports whether the changed blocks of a guest that is being prepared are to be tracked.
func WantsTracking(status *v1.VirtualMachineInstanceStatus) bool {
	if status.ChangedBlockTracking == nil {
		return false
	}
	state := status.ChangedBlockTracking.State
	return state == v1.ChangedBlockTrackingInitializing || state == v1.ChangedBlockTrackingEnabled
}
