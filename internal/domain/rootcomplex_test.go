// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func rooted(g *guest) *guest { return g.annotate(v1.PlacePCIDevicesOnRootComplex, "true") }

// rootComplex returns a guest with one of each kind of device on the root complex, and one with an address in the spec.
func rootComplex() *guest {
	return rooted(everyDevice()).emptyDisk(diskOn("data", v1.DiskBusVirtio)).devices(func(d *v1.Devices) {
		d.Disks[len(d.Disks)-1].Disk.PciAddress = "0000:00:04.0"
	})
}

func slotOf(address *libvirtxml.DomainAddress) string {
	if address == nil || address.PCI == nil {
		return "none"
	}
	return fmt.Sprintf("%x:%x.%x", *address.PCI.Bus, *address.PCI.Slot, *address.PCI.Function)
}

func TestRootComplex(t *testing.T) {
	devices := rootComplex().build(t).Devices
	got := map[string]string{
		"interface": slotOf(devices.Interfaces[0].Address), "watchdog": slotOf(devices.Watchdogs[0].Address),
		"rng": slotOf(devices.RNGs[0].Address), "balloon": slotOf(devices.MemBalloon.Address), "sound": slotOf(devices.Sounds[0].Address),
	}
	for i := range devices.Controllers {
		got[devices.Controllers[i].Type] = slotOf(devices.Controllers[i].Address)
	}
	for i := range devices.Disks {
		got["disk "+devices.Disks[i].Target.Dev] = slotOf(devices.Disks[i].Address)
	}
	for i := range devices.Inputs {
		got[fmt.Sprintf("input %d", i)] = slotOf(devices.Inputs[i].Address)
	}
	for i := range devices.Panics {
		got["panic "+devices.Panics[i].Model] = slotOf(devices.Panics[i].Address)
	}
	want := map[string]string{
		"interface": "0:2.0", "usb": "0:3.0", "virtio-serial": "0:5.0", "scsi": "0:6.0", "pci": "none",
		"disk vda": "0:7.0", "disk vdb": "0:4.0", "disk sda": "none",
		"input 0": "none", "input 1": "none", "input 2": "0:8.0", "input 3": "0:9.0",
		"watchdog": "0:a.0", "rng": "0:b.0", "balloon": "0:c.0", "panic pvpanic": "0:d.0", "panic isa": "none", "sound": "none",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, ports := pciControllers(rootComplex().build(t)); ports != 0 {
		t.Errorf("%d root ports for no device", ports)
	}
}

func TestRootComplexPassesOverReservedSlots(t *testing.T) {
	disks := func(count int) *guest {
		g := rooted(makeGuest())
		for i := range count {
			g.emptyDisk(diskOn(fmt.Sprintf("disk%d", i), v1.DiskBusVirtio))
		}
		return g
	}
	// The serial bus, SCSI and the balloon take three of the 28 slots.
	devices := disks(25).build(t).Devices
	slots := map[string]int{slotOf(devices.MemBalloon.Address): 1}
	for i := range devices.Disks {
		slots[slotOf(devices.Disks[i].Address)]++
	}
	for i := range devices.Controllers {
		slots[slotOf(devices.Controllers[i].Address)]++
	}
	for _, reserved := range []string{"0:0.0", "0:1.0", "0:1b.0", "0:1f.0"} {
		if slots[reserved] > 0 {
			t.Errorf("slot %s is not for us", reserved)
		}
	}
	delete(slots, "none")
	if len(slots) != 28 {
		t.Errorf("%d slots for 28 devices: %v", len(slots), slots)
	}
	disks(26).expectRefused(t, "metadata.annotations[kubevirt.io/placePCIDevicesOnRootComplex]", "no room")
}

// i440fx has no root complex: all devices are on the root bus.
func TestNoRootComplex(t *testing.T) {
	machine := func(machine string) *guest {
		return rooted(makeGuest().masquerade()).domainSpec(func(d *v1.DomainSpec) { d.Machine = &v1.Machine{Type: machine} })
	}
	for name, tc := range map[string]struct {
		guest *guest
		want  string
	}{
		"i440fx":         {machine("pc-i440fx-9.2"), "none"},
		"q35":            {machine("pc-q35-9.2"), "0:2.0"},
		"not requested":  {makeGuest().masquerade(), "none"},
		"turned off":     {makeGuest().masquerade().annotate(v1.PlacePCIDevicesOnRootComplex, "false"), "none"},
		"placed by hand": {rooted(withNIC(func(i *v1.Interface) { i.PciAddress = "0000:81:01.0" })), "81:1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := slotOf(tc.guest.build(t).Devices.Interfaces[0].Address); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}
