// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// diskTargets allocates target names and drive addresses in order. A disk keeps them over restarts if the disks before
// it do not change.
type diskTargets struct {
	devs  map[string]uint // by prefix
	units map[v1.DiskBus]uint
}

func newDiskTargets() *diskTargets {
	return &diskTargets{devs: map[string]uint{}, units: map[v1.DiskBus]uint{}}
}

func (t *diskTargets) next(bus v1.DiskBus) (*libvirtxml.DomainDiskTarget, *libvirtxml.DomainAddress) {
	row := diskbus.Of(bus)
	target := &libvirtxml.DomainDiskTarget{Bus: string(bus), Dev: row.Prefix + letters(t.devs[row.Prefix])}
	t.devs[row.Prefix]++
	if row.Units == 0 {
		return target, nil
	}
	unit := t.units[bus]
	t.units[bus]++
	return target, driveAddress(unit/row.Units, unit%row.Units)
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
