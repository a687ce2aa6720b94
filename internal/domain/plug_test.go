// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// plug adds a disk with a hotpluggable volume to the spec, which the Pod has.
func (g *guest) plug(disk v1.Disk, block bool) *guest {
	g.facts.Disks[disk.Name] = domain.DiskFact{
		Path: launcherpod.HotplugDisk(disk.Name, block), Block: block, Format: "raw", CapacityBytes: 1 << 20, DirectIO: true,
	}
	return g.hotpluggable(disk)
}

// hotpluggable adds a disk with a hotpluggable volume to the spec, which the Pod does not have.
func (g *guest) hotpluggable(disk v1.Disk) *guest {
	if _, has := g.facts.Disks[disk.Name]; !has {
		if g.facts.Unplugged == nil {
			g.facts.Unplugged = map[string]bool{}
		}
		g.facts.Unplugged[disk.Name] = true
	}
	return g.with(func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, disk)
		s.Volumes = append(s.Volumes, v1.Volume{Name: disk.Name, VolumeSource: v1.VolumeSource{
			DataVolume: &v1.DataVolumeSource{Name: disk.Name, Hotpluggable: true},
		}})
	})
}

// withoutFacts leaves of the facts those of hotplugged volumes: an agent that finds a running guest has no others.
func (g *guest) withoutFacts() *guest {
	for name, fact := range g.facts.Disks {
		if !strings.HasPrefix(fact.Path, launcherpod.HotplugDisksDir) {
			delete(g.facts.Disks, name)
		}
	}
	return g
}

// emptyDrive adds the drive of a CD-ROM without a volume.
func (g *guest) emptyDrive(name string) *guest {
	return g.devices(func(d *v1.Devices) { d.Disks = append(d.Disks, cdromOn(name, "")) })
}

func base() *guest {
	return makeGuest().containerDisk("root", v1.DiskBusVirtio).cloudInit(cdromOn("cloudinit", ""))
}

// Each case is a running domain and a VMI, and its golden file has the operations that lead from one to the other.
func TestDiffOfDisks(t *testing.T) {
	ordered := diskOn("data", v1.DiskBusSCSI)
	ordered.BootOrder = ptr.To[uint](1)
	threads := diskOn("data", v1.DiskBusVirtio)
	threads.DedicatedIOThread = ptr.To(true)
	foreign := func(d *libvirtxml.Domain) {
		d.Devices.Disks = append(d.Devices.Disks,
			libvirtxml.DomainDisk{
				Alias: &libvirtxml.DomainAlias{Name: "scsi0-0-0-0"}, Device: "disk",
				Target: &libvirtxml.DomainDiskTarget{Dev: "sdb", Bus: "scsi"},
				Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: launcherpod.HotplugDisk("other",
					false)}},
				Address: drive(0),
			},
			libvirtxml.DomainDisk{
				Alias: &libvirtxml.DomainAlias{Name: "ua-disk-foreign"}, Device: "disk",
				Target: &libvirtxml.DomainDiskTarget{Dev: "sdc", Bus: "scsi"},
				Source: &libvirtxml.DomainDiskSource{
					File: &libvirtxml.DomainDiskSourceFile{File: "/var/run/kubevirt-private/vmi-disks/foreign/disk.img"}},
				Address: drive(2),
			})
	}
	for name, tc := range map[string]struct {
		running, desired *guest
		change           func(*libvirtxml.Domain)
	}{
		"nothing":          {running: base(), desired: base()},
		"the same":         {running: base().plug(diskOn("data", v1.DiskBusSCSI), false), desired: base().plug(diskOn("data", v1.DiskBusSCSI), false)},
		"attach":           {running: base(), desired: base().plug(diskOn("data", v1.DiskBusSCSI), false)},
		"attach-block":     {running: base(), desired: base().plug(lunOn("data", ""), true)},
		"attach-virtio":    {running: base(), desired: base().plug(diskOn("data", v1.DiskBusVirtio), true).plug(diskOn("more", v1.DiskBusVirtio), false)},
		"attach-ordered":   {running: base(), desired: base().plug(ordered, false)},
		"attach-iothread":  {running: base(), desired: base().plug(threads, false)},
		"attach-foreign":   {running: base(), desired: base().plug(diskOn("data", v1.DiskBusSCSI), false).plug(diskOn("more", v1.DiskBusSCSI), false), change: foreign},
		"attach-first":     {running: base(), desired: makeGuest().plug(diskOn("data", v1.DiskBusVirtio), false).containerDisk("root", v1.DiskBusVirtio)},
		"detach":           {running: base().plug(diskOn("data", v1.DiskBusSCSI), false).plug(diskOn("more", v1.DiskBusVirtio), true), desired: base(), change: foreign},
		"not there":        {running: base(), desired: base().hotpluggable(diskOn("data", v1.DiskBusSCSI))},
		"replace":          {running: base().plug(diskOn("data", v1.DiskBusSCSI), false), desired: base().plug(diskOn("more", v1.DiskBusSCSI), false)},
		"not known":        {running: base().plug(diskOn("data", v1.DiskBusSCSI), false), desired: base().hotpluggable(diskOn("data", v1.DiskBusSCSI))},
		"medium not known": {running: base().plug(cdromOn("cd", ""), false), desired: base().hotpluggable(cdromOn("cd", ""))},
		"inject":           {running: base().emptyDrive("cd"), desired: base().plug(cdromOn("cd", ""), false)},
		"inject-first":     {running: base().hotpluggable(cdromOn("cd", "")), desired: base().plug(cdromOn("cd", ""), true)},
		"eject":            {running: base().plug(cdromOn("cd", ""), false), desired: base().emptyDrive("cd")},
		"eject-disk":       {running: base().plug(cdromOn("cd", ""), false), desired: base()},
		"keep its own":     {running: base(), desired: makeGuest().containerDisk("root", v1.DiskBusVirtio).emptyDrive("cloudinit")},
		"no drive":         {running: base(), desired: base().plug(cdromOn("cd", ""), false)},
		"permanent is new": {running: base(), desired: base().fileClaim(diskOn("data", v1.DiskBusSCSI), func(*domain.DiskFact) {})},
	} {
		t.Run(name, func(t *testing.T) {
			live := tc.running.build(t)
			if tc.change != nil {
				tc.change(live)
			}
			wanted, err := domain.PluggedDisks(tc.desired.withoutFacts().vmi, tc.desired.facts)
			if err != nil {
				t.Fatal(err)
			}
			operations := domain.DiffDisks(wanted, live, tc.desired.facts.Unplugged)
			compareOperations(t, name, operations)
			carryOut(live, operations)
			if rest := domain.DiffDisks(wanted, live, tc.desired.facts.Unplugged); len(rest) > 0 {
				t.Errorf("after the operations there are others: %+v", rest)
			}
		})
	}
}

// carryOut does what libvirt does.
func carryOut(d *libvirtxml.Domain, operations []domain.Operation) {
	for _, o := range operations {
		var disks []libvirtxml.DomainDisk
		for _, disk := range d.Devices.Disks {
			if disk.Alias.Name != o.Disk.Alias.Name {
				disks = append(disks, disk)
			}
		}
		if o.Action != domain.Detach {
			disks = append(disks, o.Disk)
		}
		d.Devices.Disks = disks
	}
}

// compareOperations compares operations with a golden file. Cases whose names have spaces have none.
func compareOperations(t *testing.T, name string, operations []domain.Operation) {
	t.Helper()
	var text strings.Builder
	for _, o := range operations {
		device, err := o.Disk.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "<!-- %s %s -->\n%s\n", o.Action, o.Name, device)
	}
	if file := filepath.Join("testdata", "plug", name+".xml"); !strings.Contains(name, " ") && name != "nothing" {
		if *update {
			if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatalf("%v: run the test with -update and check what it wrote", err)
		}
		if diff := cmp.Diff(string(want), text.String()); diff != "" {
			t.Error(diff)
		}
	} else if text.Len() > 0 {
		t.Errorf("got\n%s", text.String())
	}
}

// At the start, the domain has the disks of all volumes that the Pod has.
func TestBuildWithHotpluggedVolumes(t *testing.T) {
	d := base().plug(diskOn("data", v1.DiskBusSCSI),
		true).hotpluggable(diskOn("late", v1.DiskBusVirtio)).hotpluggable(cdromOn("cd", "")).build(t)
	var got []string
	for i := range d.Devices.Disks {
		disk := &d.Devices.Disks[i]
		got = append(got, fmt.Sprintf("%s %s %v", disk.Alias.Name, disk.Target.Dev, disk.Source != nil))
	}
	want := []string{"ua-disk-root vda true", "ua-disk-cloudinit sda true", "ua-disk-data sdb true",
		"ua-disk-cd sdc false"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A disk that cannot be plugged keeps no other one out.
func TestDisksThatCannotBePlugged(t *testing.T) {
	for name, disk := range map[string]v1.Disk{
		"sata": diskOn("a", v1.DiskBusSATA), "usb": diskOn("a", v1.DiskBusUSB), "no bus": {Name: "a"}, "a file as LUN": lunOn("a", ""),
	} {
		g := base().plug(disk, false).plug(diskOn("data", v1.DiskBusSCSI), false).withoutFacts()
		disks, err := domain.PluggedDisks(g.vmi, g.facts)
		if err == nil || len(disks) != 1 || disks[0].Alias.Name != "ua-disk-data" {
			t.Errorf("%s: %+v, %v", name, disks, err)
		}
	}
}
