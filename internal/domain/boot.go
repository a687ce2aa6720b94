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

// configureBootOrder lets the firmware try the disks in the order of the spec when no device names an order.
// With one that does, only those that do are tried.
func configureBootOrder(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if domain.OS != nil && domain.OS.Kernel != "" {
		return nil
	}
	devices := vmi.Spec.Domain.Devices
	for i := range devices.Disks {
		if devices.Disks[i].BootOrder != nil {
			return nil
		}
	}
	for i := range devices.Interfaces {
		if devices.Interfaces[i].BootOrder != nil {
			return nil
		}
	}
	for i := range domain.Devices.Disks {
		domain.Devices.Disks[i].Boot = &libvirtxml.DomainDeviceBoot{Order: uint(i) + 1}
	}
	return nil
}
