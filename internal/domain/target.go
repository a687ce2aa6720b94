// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"errors"
	"fmt"

	"libvirt.org/go/libvirtxml"
)

// ForTarget returns the domain for the target of a migration. live is the running domain at the source. It provides all
// that the guest sees, including the CPU, the addresses and the models that libvirt chose at the start. built is the
// result of Build with the target's facts. It provides what depends on the target's Pod: paths of disks, names of taps,
// CPUs. Neither is changed.
func ForTarget(live, built *libvirtxml.Domain) (*libvirtxml.Domain, error) {
	text, err := live.Marshal()
	if err != nil {
		return nil, fmt.Errorf("copy the running domain: %w", err)
	}
	target := &libvirtxml.Domain{}
	if err := target.Unmarshal(text); err != nil {
		return nil, fmt.Errorf("copy the running domain: %w", err)
	}
	if target.Devices == nil || built.Devices == nil {
		return nil, errors.New("a domain has no devices")
	}
	target.ID = nil
	target.SecLabel, target.Resource = built.SecLabel, built.Resource
	target.CPUTune, target.NUMATune = built.CPUTune, built.NUMATune
	if target.VCPU != nil && built.VCPU != nil {
		target.VCPU.Placement, target.VCPU.CPUSet = built.VCPU.Placement, built.VCPU.CPUSet
	}
	bootAtTarget(target, built)
	err = errors.Join(disksAtTarget(target.Devices, built.Devices), interfacesAtTarget(target.Devices, built.Devices))
	if err != nil {
		return nil, err
	}
	socketsAtTarget(target.Devices, built.Devices)
	target.Devices.Emulator = built.Devices.Emulator
	return target, nil
}

// bootAtTarget copies the paths of the kernel, the firmware variables and the ACPI tables.
func bootAtTarget(target, built *libvirtxml.Domain) {
	if target.OS == nil || built.OS == nil {
		return
	}
	target.OS.Kernel, target.OS.Initrd = built.OS.Kernel, built.OS.Initrd
	if target.OS.NVRam != nil && built.OS.NVRam != nil && built.OS.NVRam.NVRam != "" {
		target.OS.NVRam.NVRam = built.OS.NVRam.NVRam
	}
	target.OS.ACPI = built.OS.ACPI
}

func disksAtTarget(target, built *libvirtxml.DomainDeviceList) error {
	prepared := map[string]*libvirtxml.DomainDisk{}
	for i := range built.Disks {
		if alias := built.Disks[i].Alias; alias != nil {
			prepared[alias.Name] = &built.Disks[i]
		}
	}
	var errs []error
	for i := range target.Disks {
		disk := &target.Disks[i]
		there := prepared[aliasOf(disk.Alias)]
		if there == nil {
			errs = append(errs, fmt.Errorf("disk %s of the running guest: %w", aliasOf(disk.Alias), ErrNotPrepared))
			continue
		}
		if !HasMedium(disk) {
			continue // The guest has ejected it.
		}
		visible := slicesOf(disk)
		disk.Source, disk.BackingStore, disk.Mirror = there.Source, there.BackingStore, nil
		if disk.Source != nil && disk.Source.Slices == nil && visible != nil {
			// The guest sees a part of a volume that its disk was migrated to. It sees the rest after its next start.
			kept := *there.Source
			kept.Slices = visible
			disk.Source = &kept
		}
		if disk.Driver != nil && there.Driver != nil {
			d := there.Driver
			disk.Driver.Type, disk.Driver.Cache, disk.Driver.IO = d.Type, d.Cache, d.IO
			disk.Driver.Discard, disk.Driver.DetectZeros = d.Discard, d.DetectZeros
		}
	}
	return errors.Join(errs...)
}

func slicesOf(disk *libvirtxml.DomainDisk) *libvirtxml.DomainDiskSlices {
	if disk.Source == nil {
		return nil
	}
	return disk.Source.Slices
}

func interfacesAtTarget(target, built *libvirtxml.DomainDeviceList) error {
	prepared := map[string]*libvirtxml.DomainInterface{}
	for i := range built.Interfaces {
		if alias := built.Interfaces[i].Alias; alias != nil {
			prepared[alias.Name] = &built.Interfaces[i]
		}
	}
	var errs []error
	for i := range target.Interfaces {
		nic := &target.Interfaces[i]
		there := prepared[aliasOf(nic.Alias)]
		if there == nil {
			errs = append(errs, fmt.Errorf("interface %s of the running guest: %w", aliasOf(nic.Alias), ErrNotPrepared))
			continue
		}
		nic.Source, nic.Target = there.Source, there.Target
		if nic.Driver != nil && there.Driver != nil {
			nic.Driver.Name = there.Driver.Name
		}
	}
	return errors.Join(errs...)
}

// socketsAtTarget copies the backends of character devices, of graphics and of TPMs. libvirt chooses those that are not
// set.
func socketsAtTarget(target, built *libvirtxml.DomainDeviceList) {
	for i := range target.Serials {
		target.Serials[i].Source, target.Serials[i].Log = nil, nil
		if i < len(built.Serials) {
			target.Serials[i].Source, target.Serials[i].Log = built.Serials[i].Source, built.Serials[i].Log
		}
	}
	for i := range target.Consoles {
		target.Consoles[i].Source, target.Consoles[i].Log, target.Consoles[i].TTY = nil, nil, ""
		if i < len(built.Consoles) {
			target.Consoles[i].Source, target.Consoles[i].Log = built.Consoles[i].Source, built.Consoles[i].Log
		}
	}
	for i := range target.Channels {
		target.Channels[i].Source = channelSource(built.Channels, target.Channels[i].Target)
	}
	if len(target.Graphics) == len(built.Graphics) {
		target.Graphics = built.Graphics
	}
	for i := range target.TPMs {
		if i < len(built.TPMs) {
			target.TPMs[i].Backend = built.TPMs[i].Backend
		}
	}
}

// channelSource returns the backend of the channel with the same name.
func channelSource(
	built []libvirtxml.DomainChannel, to *libvirtxml.DomainChannelTarget,
) *libvirtxml.DomainChardevSource {
	for i := range built {
		if there := built[i].Target; to != nil && there != nil && to.VirtIO != nil && there.VirtIO != nil &&
			to.VirtIO.Name == there.VirtIO.Name {
			return built[i].Source
		}
	}
	return nil
}

func aliasOf(alias *libvirtxml.DomainAlias) string {
	if alias == nil {
		return ""
	}
	return alias.Name
}
