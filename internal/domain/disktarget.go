// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// sataPorts is the number of ports of an AHCI controller.
const sataPorts = 6

// diskTargets hands out target names and drive addresses in order, so that a disk keeps them over restarts
// as long as the disks before it stay.
type diskTargets struct{ vd, sd, sata, scsi uint }

func (t *diskTargets) next(bus v1.DiskBus) (*libvirtxml.DomainDiskTarget, *libvirtxml.DomainAddress) {
	target := &libvirtxml.DomainDiskTarget{Bus: string(bus)}
	if bus == v1.DiskBusVirtio {
		target.Dev = "vd" + letters(t.vd)
		t.vd++
		return target, nil
	}
	target.Dev = "sd" + letters(t.sd)
	t.sd++
	switch bus {
	case v1.DiskBusSATA:
		address := driveAddress(t.sata/sataPorts, t.sata%sataPorts)
		t.sata++
		return target, address
	case v1.DiskBusSCSI:
		// libvirt would derive a second controller from a high letter; virtio-scsi has room for all.
		address := driveAddress(0, t.scsi)
		t.scsi++
		return target, address
	default:
		return target, nil
	}
}

func driveAddress(controller, unit uint) *libvirtxml.DomainAddress {
	var zero uint
	return &libvirtxml.DomainAddress{Drive: &libvirtxml.DomainAddressDrive{
		Controller: &controller, Bus: &zero, Target: &zero, Unit: &unit,
	}}
}

// letters counts a, b, …, z, aa, ab, … as the kernel does.
func letters(index uint) string {
	const alphabet = 26
	name := ""
	for n := int(index); n >= 0; n = n/alphabet - 1 {
		name = string(rune('a'+n%alphabet)) + name
	}
	return name
}
