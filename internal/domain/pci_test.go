// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"fmt"
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func pciControllers(domain *libvirtxml.Domain) (root *libvirtxml.DomainController, ports int) {
	for i, controller := range domain.Devices.Controllers {
		switch controller.Model {
		case "pcie-root":
			root = &domain.Devices.Controllers[i]
		case "pcie-root-port":
			ports++
		}
	}
	return root, ports
}

func TestRootPorts(t *testing.T) {
	manyDisks := func(count int) *guest {
		g := makeGuest()
		for i := range count {
			g.emptyDisk(diskOn(fmt.Sprintf("disk%d", i), v1.DiskBusVirtio))
		}
		return g
	}
	for name, tc := range map[string]struct {
		guest *guest
		want  int
	}{
		"small guest":             {makeGuest(), 8},
		"small guest at the edge": {makeGuest().domainSpec(guestMemory("2Gi", "")), 8},
		"large guest":             {makeGuest().domainSpec(guestMemory("2049Mi", "")), 16},
		// Three of the machine's own (serial, SCSI, balloon), the disks, and the free ones.
		"many disks":      {manyDisks(20), 3 + 20 + 3},
		"without hotplug": {headless(), 0},
		"i440fx":          {makeGuest().domainSpec(func(d *v1.DomainSpec) { d.Machine = &v1.Machine{Type: "pc-i440fx-9.2"} }), 0},
		"pc-q35":          {makeGuest().domainSpec(func(d *v1.DomainSpec) { d.Machine = &v1.Machine{Type: "pc-q35-9.2"} }), 8},
	} {
		t.Run(name, func(t *testing.T) {
			_, ports := pciControllers(tc.guest.build(t))
			expectEqual(t, ports, tc.want)
		})
	}
}

func TestPCIHole64(t *testing.T) {
	root, _ := pciControllers(makeGuest().build(t))
	expectEqual(t, root.PCI, nil)
	for _, value := range []string{"true", "True"} {
		root, _ = pciControllers(makeGuest().annotate(v1.DisablePCIHole64, value).build(t))
		expectEqual(t, root.PCI,
			&libvirtxml.DomainControllerPCI{Hole64: &libvirtxml.DomainControllerPCIHole64{Size: 0, Unit: "KiB"}})
	}
}
