// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func bootOrders(domain *libvirtxml.Domain) []uint {
	var orders []uint
	order := func(boot *libvirtxml.DomainDeviceBoot) {
		if boot == nil {
			orders = append(orders, 0)
			return
		}
		orders = append(orders, boot.Order)
	}
	for _, disk := range domain.Devices.Disks {
		order(disk.Boot)
	}
	for _, iface := range domain.Devices.Interfaces {
		order(iface.Boot)
	}
	return orders
}

func TestBootOrder(t *testing.T) {
	makeDevices := func() *guest {
		return makeGuest().emptyDisk(diskOn("a", v1.DiskBusVirtio)).emptyDisk(cdromOn("b", v1.DiskBusSATA)).masquerade()
	}
	for name, tc := range map[string]struct {
		guest *guest
		want  []uint
	}{
		"disks as they come": {makeDevices(), []uint{1, 2, 0}},
		"a CD-ROM that comes first is tried after the disks": {makeGuest().emptyDisk(cdromOn("a", v1.DiskBusSATA)).emptyDisk(
			diskOn("b", v1.DiskBusVirtio)).
			emptyDisk(diskOn("c", v1.DiskBusSATA)), []uint{3, 1, 2}},
		"nothing but a CD-ROM":                                 {makeGuest().emptyDisk(cdromOn("a", v1.DiskBusSATA)).masquerade(), []uint{1, 0}},
		"a CD-ROM of cloud-init comes after one with a system": {makeGuest().cloudInit(cdromOn("a", v1.DiskBusSATA)).emptyDisk(cdromOn("b", v1.DiskBusSATA)), []uint{2, 1}},
		"cloud-init comes last": {makeGuest().cloudInit(diskOn("a", v1.DiskBusVirtio)).emptyDisk(
			diskOn("b", v1.DiskBusVirtio)).
			emptyDisk(cdromOn("c", v1.DiskBusSATA)), []uint{3, 1, 2}},
		"a disk has an order":    {makeDevices().devices(func(d *v1.Devices) { d.Disks[1].BootOrder = ptr.To[uint](1) }), []uint{0, 1, 0}},
		"a network has an order": {makeDevices().devices(func(d *v1.Devices) { d.Interfaces[0].BootOrder = ptr.To[uint](3) }), []uint{0, 0, 3}},
		"EFI tries the same":     {makeDevices().domainSpec(func(d *v1.DomainSpec) { d.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}}} }), []uint{1, 2, 0}},
		"a kernel is given":      {kernelBoot().emptyDisk(diskOn("a", v1.DiskBusVirtio)), []uint{0}},
	} {
		t.Run(name, func(t *testing.T) { expectEqual(t, bootOrders(tc.guest.build(t)), tc.want) })
	}
}
