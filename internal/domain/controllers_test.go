// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// controllersOf returns the models of the controllers by type, without those of PCI.
func controllersOf(domain *libvirtxml.Domain) map[string]string {
	models := map[string]string{}
	for _, controller := range domain.Devices.Controllers {
		if controller.Type != "pci" {
			models[controller.Type] = controller.Model
		}
	}
	return models
}

func TestControllers(t *testing.T) {
	const model = "virtio-non-transitional"
	unplugged := func(d *v1.Devices) { d.DisableHotplug = true }
	for name, tc := range map[string]struct {
		guest *guest
		want  map[string]string
	}{
		"ready for hotplug": {makeGuest(), map[string]string{"usb": "none", "virtio-serial": model, "scsi": model}},
		"without hotplug":   {makeGuest().devices(unplugged), map[string]string{"usb": "none", "virtio-serial": model}},
		"scsi without hotplug": {makeGuest().devices(unplugged).emptyDisk(diskOn("a", v1.DiskBusSCSI)),
			map[string]string{"usb": "none", "virtio-serial": model, "scsi": model}},
		"usb disk": {makeGuest().emptyDisk(diskOn("a", v1.DiskBusUSB)),
			map[string]string{"usb": "qemu-xhci", "virtio-serial": model, "scsi": model}},
		"usb input": {makeGuest().devices(func(d *v1.Devices) { d.Inputs = []v1.Input{{Type: v1.InputTypeTablet}} }),
			map[string]string{"usb": "qemu-xhci", "virtio-serial": model, "scsi": model}},
		"usb for clients": {makeGuest().devices(func(d *v1.Devices) { d.ClientPassthrough = &v1.ClientPassthroughDevices{} }),
			map[string]string{"usb": "qemu-xhci", "virtio-serial": model, "scsi": model}},
		"transitional": {makeGuest().devices(func(d *v1.Devices) { d.UseVirtioTransitional = ptr.To(true) }),
			map[string]string{"usb": "none", "virtio-serial": "virtio-transitional", "scsi": "virtio-transitional"}},
	} {
		t.Run(name, func(t *testing.T) { expectEqual(t, controllersOf(tc.guest.build(t)), tc.want) })
	}
}
