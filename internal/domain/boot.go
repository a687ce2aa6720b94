// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"slices"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

func bootOrder(order *uint) *libvirtxml.DomainDeviceBoot {
	if order == nil {
		return nil
	}
	return &libvirtxml.DomainDeviceBoot{Order: *order}
}

// configureBootOrder sets a boot order if no device of the spec has one: hard disks, then CD-ROMs, then generated media
// such as cloud-init. With hard disks first, a guest that was installed from a CD-ROM boots from its disk. KubeVirt's
// guests try the first hard disk only; with CD-ROMs second, an empty disk can be installed. Generated media are last
// because SeaBIOS tries only the first hard disk, and a cloud-init disk is not bootable. See docs/adr/0049.
func configureBootOrder(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if domain.OS != nil && domain.OS.Kernel != "" || setsBootOrder(&vmi.Spec.Domain.Devices) {
		return nil
	}
	media := generatedMedia(vmi)
	var disks, cdroms, others []*libvirtxml.DomainDisk
	for i := range domain.Devices.Disks {
		switch disk := &domain.Devices.Disks[i]; {
		case media[disk.Alias.Name]:
			others = append(others, disk)
		case disk.Device == diskbus.CDRom:
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

func setsBootOrder(devices *v1.Devices) bool {
	return slices.ContainsFunc(devices.Disks, func(d v1.Disk) bool { return d.BootOrder != nil }) ||
		slices.ContainsFunc(devices.Interfaces, func(i v1.Interface) bool { return i.BootOrder != nil })
}

// generatedMedia returns the aliases of the disks that the agent generates from objects of the cluster.
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
