// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"slices"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// Types of controllers whose model depends on the guest, and that disks use.
const (
	usbController  = "usb"
	scsiController = "scsi"
)

// configureControllers adds the controllers that need a certain model. libvirt adds the others.
func configureControllers(vmi *v1.VirtualMachineInstance, _ Facts, domain *libvirtxml.Domain) error {
	devices := domain.Devices
	usb := "none"
	if usesUSB(devices) {
		usb = "qemu-xhci"
	}
	addController(devices, usbController, usb)
	if len(devices.Channels) > 0 {
		addController(devices, "virtio-serial", virtioModel(vmi))
	}
	// Disks are hotplugged on the SCSI bus, so its controller must exist.
	if haveDisk(devices, scsiController) || !vmi.Spec.Domain.Devices.DisableHotplug {
		addController(devices, scsiController, virtioModel(vmi))
	}
	return nil
}

func addController(devices *libvirtxml.DomainDeviceList, kind, model string) {
	var index uint
	devices.Controllers = append(devices.Controllers, libvirtxml.DomainController{Type: kind, Index: &index, Model: model})
}

func usesUSB(devices *libvirtxml.DomainDeviceList) bool {
	return len(devices.RedirDevs) > 0 || haveDisk(devices, usbController) ||
		slices.ContainsFunc(devices.Inputs, func(i libvirtxml.DomainInput) bool { return i.Bus == string(v1.InputBusUSB) })
}

// haveDisk reports whether a disk is on a controller of a type.
func haveDisk(devices *libvirtxml.DomainDeviceList, controller string) bool {
	return slices.ContainsFunc(devices.Disks,
		func(d libvirtxml.DomainDisk) bool { return busOf(&d).Controller == controller })
}

// busOf returns the row of a disk's bus.
func busOf(disk *libvirtxml.DomainDisk) diskbus.Bus { return diskbus.Of(v1.DiskBus(disk.Target.Bus)) }
