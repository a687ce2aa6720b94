// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// sataPorts is the number of ports of an AHCI controller.
const sataPorts = 6

// diskTargets allocates target names and drive addresses in order. A disk keeps them over restarts if the disks before it do
// not change.
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
		// Without an address libvirt would add a second controller for later letters. One virtio-scsi controller is enough.
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

// letters returns the suffix of a disk's name as the kernel counts: a, b, …, z, aa, ab, …
func letters(index uint) string {
	const alphabet = 26
	name := ""
	for n := int(index); n >= 0; n = n/alphabet - 1 {
		name = string(rune('a'+n%alphabet)) + name
	}
	return name
}
