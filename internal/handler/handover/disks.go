// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"slices"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// disksToCopy are the disks of a running domain that both nodes do not share, by their target's name: what lies in the Pod, and
// the volumes that move with the guest. CD-ROMs and read-only disks that the target's agent makes itself are not copied.
// As KubeVirt (pkg/virt-launcher/virtwrap, getDiskTargetsForMigration).
func disksToCopy(vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain) []string {
	if live.Devices == nil {
		return nil
	}
	stays := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		moves := slices.ContainsFunc(vmi.Status.MigratedVolumes, func(m v1.StorageMigratedVolumeInfo) bool { return m.VolumeName == v.Name })
		shared := v.PersistentVolumeClaim != nil || v.DataVolume != nil || (v.HostDisk != nil && isTrue(v.HostDisk.Shared))
		stays[domain.DiskAlias(v.Name)] = shared && !moves
	}
	var copied []string
	for i := range live.Devices.Disks {
		disk := &live.Devices.Disks[i]
		if disk.Device == "cdrom" || disk.ReadOnly != nil || disk.Target == nil || disk.Alias == nil || stays[disk.Alias.Name] {
			continue
		}
		copied = append(copied, disk.Target.Dev)
	}
	return copied
}
