// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"strings"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Numbers of PCIe root ports, and of free ones for hotplug, as in KubeVirt's topology v3. Small guests have fewer,
// because each port costs memory and boot time.
const (
	smallGuestKiB   = 2 * 1024 * 1024
	smallGuestPorts = 8
	smallGuestFree  = 3
	largeGuestPorts = 16
	largeGuestFree  = 6
)

// configurePCITopology adds PCIe root ports for the devices, and free ones for hotplug. A port cannot be hotplugged.
func configurePCITopology(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	if domain.OS == nil || !strings.Contains(domain.OS.Type.Machine, defaultMachine) {
		// Only q35 has PCIe. On i440fx every slot supports hotplug.
		return nil
	}
	var root uint
	controllers := []libvirtxml.DomainController{{Type: "pci", Index: &root, Model: "pcie-root", PCI: pcieRoot(vmi)}}
	// Free ports would take the slots of the devices that have to be on the root complex.
	if !vmi.Spec.Domain.Devices.DisableHotplug && !onRootComplex(vmi) {
		for index := range rootPorts(domain) {
			controllers = append(controllers,
				libvirtxml.DomainController{Type: "pci", Index: new(index + 1), Model: "pcie-root-port"})
		}
	}
	domain.Devices.Controllers = append(domain.Devices.Controllers, controllers...)
	return nil
}

func pcieRoot(vmi *v1.VirtualMachineInstance) *libvirtxml.DomainControllerPCI {
	if !strings.EqualFold(vmi.Annotations[v1.DisablePCIHole64], "true") { // case-insensitive as in KubeVirt
		return nil
	}
	return &libvirtxml.DomainControllerPCI{Hole64: &libvirtxml.DomainControllerPCIHole64{Unit: "KiB"}}
}

func rootPorts(domain *libvirtxml.Domain) uint {
	total, free := uint(largeGuestPorts), uint(largeGuestFree)
	if domain.Memory == nil || domain.Memory.Value <= smallGuestKiB {
		total, free = smallGuestPorts, smallGuestFree
	}
	return max(total, portsTaken(domain.Devices)+free)
}

// portsTaken counts the root ports that libvirt needs for the devices. Integrated devices (SATA, video, ICH9 sound)
// need none, and all conventional PCI devices share the port of one bridge.
func portsTaken(devices *libvirtxml.DomainDeviceList) uint {
	var taken uint
	conventional := len(devices.Watchdogs) > 0
	for i := range devices.Disks {
		if busOf(&devices.Disks[i]).Virtio && devices.Disks[i].Address == nil {
			taken++
		}
	}
	for i := range devices.Interfaces {
		switch model := devices.Interfaces[i].Model.Type; {
		case devices.Interfaces[i].Address != nil:
		case model == "e1000e", model == "igb", strings.HasPrefix(model, v1.VirtIO):
			taken++
		default:
			conventional = true
		}
	}
	for i := range devices.Controllers {
		if devices.Controllers[i].Model != "none" {
			taken++
		}
	}
	for i := range devices.Inputs {
		if devices.Inputs[i].Bus == v1.VirtIO {
			taken++
		}
	}
	for i := range devices.Sounds {
		conventional = conventional || devices.Sounds[i].Model == "ac97"
	}
	taken += uint(len(devices.RNGs))
	if devices.MemBalloon != nil && devices.MemBalloon.Model != "none" {
		taken++
	}
	if devices.VSock != nil {
		taken++
	}
	if conventional {
		// The port of the bridge.
		taken++
	}
	return taken
}
