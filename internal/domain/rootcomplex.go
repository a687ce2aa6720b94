// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Slots of the PCIe root complex. QEMU and libvirt use 0 for the host bridge, 1 for the video card, 0x1b for the first
// ICH9 sound card and 0x1f for the chipset and its SATA controller. KubeVirt reserves the same.
const (
	firstRootSlot = 0x02
	soundSlot     = 0x1b
	chipsetSlot   = 0x1f
)

// onRootComplex reports whether all PCI devices must be on the root complex, as guests without PCIe support need.
func onRootComplex(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Annotations[v1.PlacePCIDevicesOnRootComplex] == "true"
}

// hasPCIe reports whether a machine type has a PCIe root complex: q35, and virt on arm64. On i440fx all devices are on
// the root bus.
func hasPCIe(domain *libvirtxml.Domain) bool {
	return domain.OS != nil &&
		(strings.Contains(domain.OS.Type.Machine, defaultMachine) || strings.HasPrefix(domain.OS.Type.Machine, "virt"))
}

// placeOnRootComplex assigns a slot of the root complex to each PCI device without an address in the spec.
func placeOnRootComplex(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if !onRootComplex(vmi) || !hasPCIe(domain) {
		return nil
	}
	addresses := pciAddresses(domain.Devices)
	taken := map[uint]bool{soundSlot: true, chipsetSlot: true}
	for _, address := range addresses {
		if a := *address; a != nil && a.PCI != nil && a.PCI.Bus != nil && *a.PCI.Bus == 0 && a.PCI.Slot != nil {
			taken[*a.PCI.Slot] = true
		}
	}
	slot := uint(firstRootSlot)
	for _, address := range addresses {
		if *address != nil {
			continue
		}
		for taken[slot] {
			slot++
		}
		if slot > chipsetSlot {
			return field.Forbidden(field.NewPath("metadata", "annotations").Key(v1.PlacePCIDevicesOnRootComplex),
				"the root complex has no room for all devices of this guest: take devices away, or leave the annotation out")
		}
		*address = rootAddress(slot)
		slot++
	}
	return nil
}

func rootAddress(slot uint) *libvirtxml.DomainAddress {
	var bus, function uint
	return &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Domain: new(uint), Bus: &bus, Slot: &slot,
		Function: &function}}
}

// pciAddresses returns the addresses of all devices that need a slot: first those that KubeVirt places, in its order,
// then those that libvirt would place behind a bridge.
func pciAddresses(devices *libvirtxml.DomainDeviceList) []**libvirtxml.DomainAddress {
	var out []**libvirtxml.DomainAddress
	for i := range devices.Interfaces {
		out = append(out, &devices.Interfaces[i].Address)
	}
	for i := range devices.Controllers {
		if c := &devices.Controllers[i]; c.Type != "pci" && c.Model != "none" {
			out = append(out, &c.Address)
		}
	}
	for i := range devices.Disks {
		if busOf(&devices.Disks[i]).Virtio {
			out = append(out, &devices.Disks[i].Address)
		}
	}
	for i := range devices.Inputs {
		if devices.Inputs[i].Bus == v1.VirtIO {
			out = append(out, &devices.Inputs[i].Address)
		}
	}
	for i := range devices.Watchdogs {
		out = append(out, &devices.Watchdogs[i].Address)
	}
	for i := range devices.RNGs {
		out = append(out, &devices.RNGs[i].Address)
	}
	if b := devices.MemBalloon; b != nil && b.Model != "none" {
		out = append(out, &b.Address)
	}
	for i := range devices.Sounds {
		if devices.Sounds[i].Model != "ich9" {
			out = append(out, &devices.Sounds[i].Address)
		}
	}
	for i := range devices.Panics {
		if devices.Panics[i].Model == string(v1.Pvpanic) {
			out = append(out, &devices.Panics[i].Address)
		}
	}
	if devices.VSock != nil {
		out = append(out, &devices.VSock.Address)
	}
	return out
}
