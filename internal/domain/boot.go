// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func bootOrder(order *uint) *libvirtxml.DomainDeviceBoot {
	if order == nil {
		return nil
	}
	return &libvirtxml.DomainDeviceBoot{Order: *order}
}

// configureBootOrder lets the firmware try the disks in the order of the spec when no device names an order,
// those last that hold no system. SeaBIOS goes no further than the first hard disk, bootable or not: a
// cloud-init disk before the root disk would be the end. With a device that names an order, only those that do
// are tried.
func configureBootOrder(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if domain.OS != nil && domain.OS.Kernel != "" || namesBootOrder(&vmi.Spec.Domain.Devices) {
		return nil
	}
	media := generatedMedia(vmi)
	var systems, others []*libvirtxml.DomainDisk
	for i := range domain.Devices.Disks {
		disk := &domain.Devices.Disks[i]
		if media[disk.Alias.Name] {
			others = append(others, disk)
		} else {
			systems = append(systems, disk)
		}
	}
	for i, disk := range append(systems, others...) {
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
