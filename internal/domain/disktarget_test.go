// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/builder"
)

func TestDiskTargets(t *testing.T) {
	g := makeGuest()
	for i, bus := range []v1.DiskBus{"virtio", "sata", "virtio", "scsi", "usb", "sata", "sata", "sata", "sata", "sata",
		"sata", "scsi"} {
		g.emptyDisk(diskOn(fmt.Sprintf("disk%d", i), bus))
	}
	var got []string
	for _, disk := range g.build(t).Devices.Disks {
		text := disk.Target.Dev
		if disk.Address != nil {
			text += fmt.Sprintf(" %d:%d", *disk.Address.Drive.Controller, *disk.Address.Drive.Unit)
		}
		got = append(got, text)
	}
	expectEqual(t, got, []string{
		"vda", "sda 0:0", "vdb", "sdb 0:0", "sdc", "sdd 0:1", "sde 0:2", "sdf 0:3", "sdg 0:4", "sdh 0:5", "sdi 1:0",
		"sdj 0:1",
	})
}

func TestDiskTargetsAfterZ(t *testing.T) {
	g := makeGuest()
	for i := range 704 {
		g.emptyDisk(diskOn(fmt.Sprintf("disk%d", i), v1.DiskBusVirtio))
	}
	disks := g.build(t).Devices.Disks
	for index, want := range map[int]string{0: "vda", 25: "vdz", 26: "vdaa", 701: "vdzz", 702: "vdaaa"} {
		if got := disks[index].Target.Dev; got != want {
			t.Errorf("disk %d is %s, want %s", index, got, want)
		}
	}
}

// Each kind of disks can be on the buses of the table and no other, and has what the table says of its bus.
func TestDisksFollowTheTableOfBuses(t *testing.T) {
	const path = "spec.domain.devices.disks[0]"
	for _, name := range diskbus.Names("") {
		bus := diskbus.Of(name)
		for _, kind := range []string{diskbus.Disk, diskbus.LUN, diskbus.CDRom} {
			disk := builder.MakeDisk("a", kind, name)
			g := makeGuest().blockClaim(disk).devices(func(d *v1.Devices) { d.DisableHotplug = true })
			if !bus.Connects(kind) {
				g.expectRefused(t, path+"."+kind+".bus", string(diskbus.Names(kind)[0]))
				continue
			}
			built := g.build(t)
			got := built.Devices.Disks[0]
			if got.Device != kind || got.Target.Bus != string(name) || got.Target.Dev != bus.Prefix+"a" {
				t.Errorf("%s on %s is a %s with the target %+v", kind, name, got.Device, got.Target)
			}
			if (got.Model != "") != bus.Virtio || (got.Address != nil) != (bus.Units > 0) {
				t.Errorf("%s on %s has the model %q and the address %+v", kind, name, got.Model, got.Address)
			}
			if model := controllersOf(built)[bus.Controller]; bus.Controller != "" && (model == "" || model == "none") {
				t.Errorf("%s on %s needs a controller %s: add it to configureControllers in internal/domain/controllers.go", kind,
					name,
					bus.Controller)
			}
			plugged, err := domain.PluggedDisks(base().plug(disk, true).withoutFacts().vmi, domain.Facts{
				Disks: map[string]domain.DiskFact{
					"a": {Path: launcherpod.HotplugDisk("a", true), Block: true, Format: "raw", DirectIO: true},
				},
			})
			if can := len(plugged) == 1; can != (bus.Plugs(kind) || kind == diskbus.CDRom) {
				t.Errorf("%s on %s: can be plugged: %v (%v)", kind, name, can, err)
			}
			if err != nil && !strings.Contains(err.Error(), pluggable()) {
				t.Errorf("%s on %s: %v. checkPluggable in internal/domain/plug.go should name %s", kind, name, err, pluggable())
			}
		}
	}
}

// pluggable names the buses on which disks can be plugged.
func pluggable() string {
	var names []string
	for _, name := range diskbus.Names(diskbus.Disk) {
		if diskbus.Of(name).Hotpluggable {
			names = append(names, string(name))
		}
	}
	return strings.Join(names, " or ")
}

// The integration tests define the golden domains in libvirt, and so a disk on each bus.
func TestEveryBusIsInAGoldenDomain(t *testing.T) {
	golden := map[string]bool{}
	for _, makeIt := range goldenGuests {
		for _, disk := range makeIt().build(t).Devices.Disks {
			golden[disk.Target.Bus] = true
		}
	}
	for _, name := range diskbus.Names("") {
		if !golden[string(name)] {
			t.Errorf("no golden domain has a disk on %s: add one to goldenGuests in internal/domain/build_test.go, and run "+
				"go test ./internal/domain -update", name)
		}
	}
}

// The error of a bus that cannot be read-only names the others.
func TestReadOnlyDisksFollowTheTableOfBuses(t *testing.T) {
	var others []v1.DiskBus
	for _, name := range diskbus.Names(diskbus.Disk) {
		if !diskbus.Of(name).NeverReadOnly {
			others = append(others, name)
		}
	}
	for _, name := range diskbus.Names(diskbus.Disk) {
		disk := diskOn("a", name)
		disk.Disk.ReadOnly = true
		g := makeGuest().emptyDisk(disk)
		if diskbus.Of(name).NeverReadOnly {
			g.expectRefused(t, "spec.domain.devices.disks[0].disk.readonly", "cdrom")
			_, err := domain.Build(g.vmi, g.facts)
			for _, other := range others {
				if !strings.Contains(err.Error(), string(other)) {
					t.Errorf("%v: the message in internal/domain/disk.go does not name the bus %s", err, other)
				}
			}
		} else if g.build(t).Devices.Disks[0].ReadOnly == nil {
			t.Errorf("the guest can write to a read-only disk on %s", name)
		}
	}
}
