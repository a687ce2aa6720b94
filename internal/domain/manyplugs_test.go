// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"fmt"
	"testing"

	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// manyPlugs is how many volumes KubeVirt's tests plug at once.
const manyPlugs = 75

// withPlugs adds disks to a guest: those with the numbers from first to the one before end.
func withPlugs(g *guest, bus v1.DiskBus, first, end int) *guest {
	for i := first; i < end; i++ {
		g.plug(diskOn(fmt.Sprintf("%s-%03d", bus, i), bus), i%2 == 0)
	}
	return g
}

// expectDistinct checks that no two disks of a domain have one target, or one address on the SCSI bus, and that all of
// these are on its first controller. It returns the number of disks on each bus.
func expectDistinct(t *testing.T, d *libvirtxml.Domain) map[string]int {
	t.Helper()
	targets, units, buses := map[string]bool{}, map[uint]bool{}, map[string]int{}
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		buses[disk.Target.Bus]++
		if targets[disk.Target.Dev] || disk.Target.Dev == "" {
			t.Errorf("disk %s has the target %q of another one", disk.Alias.Name, disk.Target.Dev)
		}
		targets[disk.Target.Dev] = true
		if disk.Target.Bus != string(v1.DiskBusSCSI) {
			continue
		}
		at := disk.Address.Drive
		if *at.Controller != 0 || units[*at.Unit] {
			t.Errorf("disk %s has the address %d:%d", disk.Alias.Name, *at.Controller, *at.Unit)
		}
		units[*at.Unit] = true
	}
	return buses
}

// rootPortsOf returns the number of a domain's PCIe root ports.
func rootPortsOf(d *libvirtxml.Domain) int {
	ports := 0
	for i := range d.Devices.Controllers {
		if d.Devices.Controllers[i].Model == "pcie-root-port" {
			ports++
		}
	}
	return ports
}

// Many disks are plugged at once, exchanged, and there at the next start.
func TestManyPluggedDisks(t *testing.T) {
	live := base().build(t)
	ports, controllers := rootPortsOf(live), len(live.Devices.Controllers)
	follow := func(g *guest, want int) {
		t.Helper()
		desired, err := domain.PluggedDisks(g.withoutFacts().vmi, g.facts)
		if err != nil {
			t.Fatal(err)
		}
		operations := domain.DiffDisks(desired, live, g.facts.Unplugged)
		if len(operations) != want {
			t.Errorf("%d operations, want %d", len(operations), want)
		}
		carryOut(live, operations)
		if rest := domain.DiffDisks(desired, live, g.facts.Unplugged); len(rest) > 0 {
			t.Errorf("%d operations are left", len(rest))
		}
	}
	follow(withPlugs(base(), v1.DiskBusSCSI, 0, manyPlugs), manyPlugs)
	if got := expectDistinct(t, live)["scsi"]; got != manyPlugs {
		t.Errorf("the guest has %d disks on the SCSI bus", got)
	}
	// Others do not take the places of those that the guest may keep, and take them once they are free.
	follow(withPlugs(base(), v1.DiskBusSCSI, 40, 40+manyPlugs), 40+40)
	follow(withPlugs(base(), v1.DiskBusSCSI, 80, 80+manyPlugs), 40+40)
	if got := expectDistinct(t, live)["scsi"]; got != manyPlugs {
		t.Errorf("the guest has %d disks on the SCSI bus", got)
	}
	for i := range live.Devices.Disks {
		if at := live.Devices.Disks[i].Address; live.Devices.Disks[i].Target.Bus == "scsi" && *at.Drive.Unit >= manyPlugs+40 {
			t.Errorf("unit %d was not needed", *at.Drive.Unit)
		}
	}
	// The next start needs no more controllers or ports for them.
	started := withPlugs(base(), v1.DiskBusSCSI, 0, manyPlugs).build(t)
	if got := expectDistinct(t, started)["scsi"]; got != manyPlugs {
		t.Errorf("the guest starts with %d disks on the SCSI bus", got)
	}
	if rootPortsOf(started) != ports || len(started.Devices.Controllers) != controllers {
		t.Errorf("the guest starts with %d ports and %d controllers", rootPortsOf(started), len(started.Devices.Controllers))
	}
}

// Each disk on the virtio bus takes a root port. At every start, there are ports for those that the guest has and for
// some more.
func TestPortsForPluggedDisks(t *testing.T) {
	none := rootPortsOf(base().build(t))
	for _, plugged := range []int{0, 1, 2, 3, 10, manyPlugs} {
		g := withPlugs(base(), v1.DiskBusVirtio, 0, plugged)
		d := g.build(t)
		if got := expectDistinct(t, d)["virtio"]; got != plugged+1 {
			t.Errorf("the guest has %d disks on the virtio bus", got)
		}
		// The guest's other devices take as many ports as without these disks: as many as leave 3 of at least 8 free.
		ports := rootPortsOf(d)
		if ports < none || ports < plugged+3 {
			t.Errorf("%d plugged disks: %d ports", plugged, ports)
		}
		more := rootPortsOf(withPlugs(base(), v1.DiskBusVirtio, 0, plugged+1).build(t))
		if more-ports != 0 && more-ports != 1 || plugged >= none && more-ports != 1 {
			t.Errorf("the disk after %d has %d ports", plugged, more-ports)
		}
	}
}
