// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// mover returns a guest with one of each device that is different at the target.
func mover() *guest {
	return dedicated(1, 2, 0, 1).kvm().masquerade().containerDisk("root",
		v1.DiskBusVirtio).blockClaim(diskOn("data", v1.DiskBusSCSI))
}

// elsewhere returns the same guest with the facts of another node.
func elsewhere() *guest {
	return mover().on(func(f *domain.Facts) {
		f.VhostNet, f.CPUs = false, []uint{6, 7}
		for i := range f.NUMACells {
			f.NUMACells[i].CPUs = []domain.CPUFact{{ID: 6}, {ID: 7}}
		}
		root := f.Disks["root"]
		root.Path, root.BackingPath, root.DirectIO = "/var/run/elsewhere/root.qcow2", "/var/run/elsewhere/disk.img",
			!root.DirectIO
		f.Disks["root"] = root
		for name, nic := range f.Interfaces {
			nic.Tap = "elsewhere0"
			f.Interfaces[name] = nic
		}
	})
}

// lives returns a domain as libvirt reports it while it runs.
func lives(t *testing.T, g *guest) *libvirtxml.Domain {
	t.Helper()
	live := g.build(t)
	live.ID = ptr.To(7)
	live.CPU = &libvirtxml.DomainCPU{
		Mode: "custom", Match: "exact", Check: "full",
		Model: &libvirtxml.DomainCPUModel{Value: "EPYC-Milan", Fallback: "forbid"}, Topology: live.CPU.Topology,
	}
	live.OS.Type.Machine = "pc-q35-10.0"
	live.Devices.Serials[0].Source.Pty.Path, live.Devices.Consoles[0].Source.Pty.Path = "/dev/pts/0", "/dev/pts/0"
	live.Devices.Consoles[0].TTY = "/dev/pts/0"
	live.Devices.Channels[0].Source.UNIX = &libvirtxml.DomainChardevSourceUNIX{Mode: "bind",
		Path: "/var/run/libvirt/run/channel/7-x/agent"}
	for i := range live.Devices.Disks {
		live.Devices.Disks[i].Address = &libvirtxml.DomainAddress{Drive: &libvirtxml.DomainAddressDrive{Unit: ptr.To(
			uint(i))}}
	}
	live.Devices.Interfaces[0].Address = &libvirtxml.DomainAddress{PCI: &libvirtxml.DomainAddressPCI{Bus: ptr.To[uint](1)}}
	// As the agent reads it from libvirt.
	parsed := &libvirtxml.Domain{}
	if err := parsed.Unmarshal(marshal(t, live)); err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestForTarget(t *testing.T) {
	got, err := domain.ForTarget(lives(t, mover()), elsewhere().build(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := got.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "target", "moved.xml")
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: make the file with -update", err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), text); diff != "" {
		t.Errorf("the domain differs from %s (-want +got); run with -update if it is meant to:\n%s", path, diff)
	}
}

func TestForTargetTakesTheHostsPartsFromTheTarget(t *testing.T) {
	live, built := lives(t, mover()), elsewhere().build(t)
	got, err := domain.ForTarget(live, built)
	if err != nil {
		t.Fatal(err)
	}
	disk, nic := got.Devices.Disks[0], got.Devices.Interfaces[0]
	if disk.Source.File.File != "/var/run/elsewhere/root.qcow2" ||
		disk.BackingStore.Source.File.File != "/var/run/elsewhere/disk.img" {
		t.Errorf("the disk lies in %+v over %+v", disk.Source.File, disk.BackingStore.Source)
	}
	if nic.Target.Dev != "elsewhere0" || nic.Driver.Name != "qemu" {
		t.Errorf("the interface is %+v with %+v", nic.Target, nic.Driver)
	}
	if got.CPUTune.VCPUPin[0].CPUSet != built.CPUTune.VCPUPin[0].CPUSet ||
		got.CPUTune.VCPUPin[0].CPUSet == live.CPUTune.VCPUPin[0].CPUSet {
		t.Errorf("the first CPU is pinned to %s", got.CPUTune.VCPUPin[0].CPUSet)
	}
	if got.Devices.Serials[0].Source.Pty.Path != "" || got.Devices.Consoles[0].TTY != "" ||
		got.Devices.Channels[0].Source.UNIX.Path != "" || got.ID != nil {
		t.Error("something is left of the source's Pod")
	}
}

func TestForTargetTakesWhatTheGuestSeesFromTheSource(t *testing.T) {
	live := lives(t, mover())
	got, err := domain.ForTarget(live, elsewhere().build(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, pair := range map[string][2]any{
		"CPU": {live.CPU, got.CPU}, "machine": {live.OS.Type, got.OS.Type}, "memory": {live.Memory, got.Memory},
		"address of the disk":      {live.Devices.Disks[0].Address, got.Devices.Disks[0].Address},
		"address of the interface": {live.Devices.Interfaces[0].Address, got.Devices.Interfaces[0].Address},
		"MAC":                      {live.Devices.Interfaces[0].MAC, got.Devices.Interfaces[0].MAC},
		"controllers":              {live.Devices.Controllers, got.Devices.Controllers},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestForTargetDoesNotChangeItsInput(t *testing.T) {
	live, built := lives(t, mover()), elsewhere().build(t)
	before := [2]string{marshal(t, live), marshal(t, built)}
	if _, err := domain.ForTarget(live, built); err != nil {
		t.Fatal(err)
	}
	if after := [2]string{marshal(t, live), marshal(t, built)}; after != before {
		t.Error(cmp.Diff(before, after))
	}
}

func TestForTargetNeedsEveryDeviceOfTheGuest(t *testing.T) {
	live := lives(t, mover())
	for name, there := range map[string]*guest{
		"without a disk":       dedicated(1, 2, 0, 1).kvm().masquerade().containerDisk("root", v1.DiskBusVirtio),
		"without an interface": dedicated(1, 2, 0, 1).kvm().containerDisk("root", v1.DiskBusVirtio).blockClaim(diskOn("data", v1.DiskBusSCSI)),
	} {
		if _, err := domain.ForTarget(live, there.build(t)); !errors.Is(err, domain.ErrNotPrepared) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// An empty drive stays empty, even if the spec has a medium for it.
func TestForTargetLeavesADriveEmpty(t *testing.T) {
	live := lives(t, mover())
	live.Devices.Disks[0].Source, live.Devices.Disks[0].BackingStore = nil, nil
	got, err := domain.ForTarget(live, elsewhere().build(t))
	if err != nil {
		t.Fatal(err)
	}
	if source := got.Devices.Disks[0].Source; source != nil && source.File.File != "" {
		t.Errorf("it contains %+v", source.File)
	}
}

func marshal(t *testing.T, d *libvirtxml.Domain) string {
	t.Helper()
	text, err := d.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
