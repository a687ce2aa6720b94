// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureControllers adds the controllers whose model matters. libvirt adds the others.
func configureControllers(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	devices := domain.Devices
	usb := "none"
	if usesUSB(devices) {
		usb = "qemu-xhci"
	}
	addController(devices, "usb", usb)
	if len(devices.Channels) > 0 {
		addController(devices, "virtio-serial", virtioModel(vmi))
	}
	// Disks are plugged into a running guest on the scsi bus, which must be there before.
	if usesBus(devices, v1.DiskBusSCSI) || !vmi.Spec.Domain.Devices.DisableHotplug {
		addController(devices, "scsi", virtioModel(vmi))
	}
	return nil
}

func addController(devices *libvirtxml.DomainDeviceList, kind, model string) {
	var index uint
	devices.Controllers = append(devices.Controllers, libvirtxml.DomainController{Type: kind, Index: &index, Model: model})
}

func usesUSB(devices *libvirtxml.DomainDeviceList) bool {
	for i := range devices.Inputs {
		if devices.Inputs[i].Bus == string(v1.InputBusUSB) {
			return true
		}
	}
	return len(devices.RedirDevs) > 0 || usesBus(devices, v1.DiskBusUSB)
}

func usesBus(devices *libvirtxml.DomainDeviceList, bus v1.DiskBus) bool {
	for i := range devices.Disks {
		if devices.Disks[i].Target.Bus == string(bus) {
			return true
		}
	}
	return false
}
