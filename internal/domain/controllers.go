// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"slices"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// configureControllers adds the controllers that need a certain model. libvirt adds the others.
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
	// Disks are hotplugged on the SCSI bus, so its controller must exist.
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
	return len(devices.RedirDevs) > 0 || usesBus(devices, v1.DiskBusUSB) ||
		slices.ContainsFunc(devices.Inputs, func(i libvirtxml.DomainInput) bool { return i.Bus == string(v1.InputBusUSB) })
}

func usesBus(devices *libvirtxml.DomainDeviceList, bus v1.DiskBus) bool {
	return slices.ContainsFunc(devices.Disks, func(d libvirtxml.DomainDisk) bool { return d.Target.Bus == string(bus) })
}
