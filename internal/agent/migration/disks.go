// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migration

import (
	"slices"

	"k8s.io/utils/ptr"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// disksToCopy returns the disks of a running domain that the nodes do not share, by their target's name: those in the Pod, and the volumes
// that migrate with the guest. CD-ROMs and read-only disks are not copied: the target's agent makes them itself.
// As KubeVirt (pkg/virt-launcher/virtwrap, getDiskTargetsForMigration).
func disksToCopy(vmi *v1.VirtualMachineInstance, live *libvirtxml.Domain) []string {
	if live.Devices == nil {
		return nil
	}
	shared := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		moves := slices.ContainsFunc(vmi.Status.MigratedVolumes, func(m v1.StorageMigratedVolumeInfo) bool { return m.VolumeName == v.Name })
		reachable := v.PersistentVolumeClaim != nil || v.DataVolume != nil || (v.HostDisk != nil && ptr.Deref(v.HostDisk.Shared, false))
		shared[domain.DiskAlias(v.Name)] = reachable && !moves
	}
	var copied []string
	for i := range live.Devices.Disks {
		disk := &live.Devices.Disks[i]
		if disk.Device == "cdrom" || disk.ReadOnly != nil || disk.Target == nil || disk.Alias == nil || shared[disk.Alias.Name] {
			continue
		}
		copied = append(copied, disk.Target.Dev)
	}
	return copied
}
