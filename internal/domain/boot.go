// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"slices"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func bootOrder(order *uint) *libvirtxml.DomainDeviceBoot {
	if order == nil {
		return nil
	}
	return &libvirtxml.DomainDeviceBoot{Order: *order}
}

// configureBootOrder has the firmware try the hard disks first when no device names an order, as libvirt does for KubeVirt: a
// guest that was installed from a CD-ROM boots from its disk, wherever the CD-ROM is in the spec. KubeVirt's guests try the first
// hard disk and nothing else. Here the CD-ROMs follow, so that a blank disk is installed, and last come the media that hold no
// system: SeaBIOS goes no further than the first hard disk, bootable or not, and a cloud-init disk before the root disk would be
// the end. With a device that names an order, only those that do are tried. docs/adr/0049
func configureBootOrder(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if domain.OS != nil && domain.OS.Kernel != "" || namesBootOrder(&vmi.Spec.Domain.Devices) {
		return nil
	}
	media := generatedMedia(vmi)
	var disks, cdroms, others []*libvirtxml.DomainDisk
	for i := range domain.Devices.Disks {
		switch disk := &domain.Devices.Disks[i]; {
		case media[disk.Alias.Name]:
			others = append(others, disk)
		case disk.Device == "cdrom":
			cdroms = append(cdroms, disk)
		default:
			disks = append(disks, disk)
		}
	}
	for i, disk := range slices.Concat(disks, cdroms, others) {
		disk.Boot = &libvirtxml.DomainDeviceBoot{Order: uint(i) + 1}
	}
	return nil
}

func namesBootOrder(devices *v1.Devices) bool {
	for i := range devices.Disks {
		if devices.Disks[i].BootOrder != nil {
			return true
		}
	}
	for i := range devices.Interfaces {
		if devices.Interfaces[i].BootOrder != nil {
			return true
		}
	}
	return false
}

// generatedMedia are the aliases of the disks that are made from data of the cluster.
func generatedMedia(vmi *v1.VirtualMachineInstance) map[string]bool {
	media := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		volume := &vmi.Spec.Volumes[i]
		media[DiskAlias(volume.Name)] = volume.CloudInitNoCloud != nil || volume.CloudInitConfigDrive != nil ||
			volume.Sysprep != nil || volume.ConfigMap != nil || volume.Secret != nil ||
			volume.DownwardAPI != nil || volume.ServiceAccount != nil || volume.DownwardMetrics != nil
	}
	return media
}
