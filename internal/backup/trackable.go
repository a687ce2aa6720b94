// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"slices"

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
		case volume.WrittenClaim() == "" && volume.HostDisk == nil,
			status != nil && vmistatus.IsHotplugged(status),
			vmistatus.Migrated(&vmi.Status, volume.Name) != nil,
			!slices.ContainsFunc(vmi.Spec.Domain.Devices.Disks, func(d v1.Disk) bool { return d.Name == volume.Name && isWritten(&d) }):
		default:
			names = append(names, volume.Name)
		}
	}
	return names
}

// isWritten reports whether a disk is a hard disk that this guest writes to, and no other one.
func isWritten(d *v1.Disk) bool {
	return d.CDRom == nil && d.LUN == nil && (d.Disk == nil || !d.Disk.ReadOnly) && !ptr.Deref(d.Shareable, false)
}

// WantsTracking reports whether the changed blocks of a guest that is being prepared are to be tracked.
func WantsTracking(status *v1.VirtualMachineInstanceStatus) bool {
	if status.ChangedBlockTracking == nil {
		return false
	}
	state := status.ChangedBlockTracking.State
	return state == v1.ChangedBlockTrackingInitializing || state == v1.ChangedBlockTrackingEnabled
}
