// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// fileDisk returns a virtio disk on a raw file, which tests change.
func fileDisk(name string, change func(*libvirtxml.DomainDisk)) libvirtxml.DomainDisk {
	disk := libvirtxml.DomainDisk{
		Device: "disk",
		Model:  "virtio-non-transitional",
		Driver: &libvirtxml.DomainDiskDriver{Name: "qemu", Type: "raw", Cache: "none", ErrorPolicy: "stop",
			Discard: "unmap"},
		Source:       &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: rawFact(name).Path}},
		BackingStore: &libvirtxml.DomainDiskBackingStore{},
		Target:       &libvirtxml.DomainDiskTarget{Dev: "vda", Bus: "virtio"},
		Boot:         &libvirtxml.DomainDeviceBoot{Order: 1},
		Alias:        &libvirtxml.DomainAlias{Name: "ua-disk-" + name},
	}
	if change != nil {
		change(&disk)
	}
	return disk
}

func drive(unit uint) *libvirtxml.DomainAddress {
	return &libvirtxml.DomainAddress{Drive: &libvirtxml.DomainAddressDrive{
		Controller: ptr.To[uint](0), Bus: ptr.To[uint](0), Target: ptr.To[uint](0), Unit: &unit,
	}}
}

func TestDiskDevices(t *testing.T) {
	readonly := func(bus v1.DiskBus) v1.Disk {
		disk := diskOn("a", bus)
		disk.Disk.ReadOnly = true
		return disk
	}
	open := cdromOn("a", "")
	open.CDRom.Tray = v1.TrayStateOpen
	for name, tc := range map[string]struct {
		disk v1.Disk
		want func(*libvirtxml.DomainDisk)
	}{
		"virtio":          {diskOn("a", v1.DiskBusVirtio), nil},
		"sata":            {diskOn("a", v1.DiskBusSATA), onBus("sata", drive(0))},
		"sata is default": {v1.Disk{Name: "a"}, onBus("sata", drive(0))},
		"scsi":            {diskOn("a", v1.DiskBusSCSI), onBus("scsi", drive(0))},
		"usb":             {diskOn("a", v1.DiskBusUSB), onBus("usb", nil)},
		"read-only": {readonly(v1.DiskBusVirtio), func(d *libvirtxml.DomainDisk) {
			d.ReadOnly, d.Driver.Discard = &libvirtxml.DomainDiskReadOnly{}, ""
		}},
		"cdrom": {cdromOn("a", v1.DiskBusSCSI), func(d *libvirtxml.DomainDisk) {
			onBus("scsi", drive(0))(d)
			d.Device, d.ReadOnly, d.Driver.Discard = "cdrom", &libvirtxml.DomainDiskReadOnly{}, ""
		}},
		"cdrom with its tray open": {open, func(d *libvirtxml.DomainDisk) {
			onBus("sata", drive(0))(d)
			d.Device, d.ReadOnly, d.Driver.Discard, d.Target.Tray = "cdrom", &libvirtxml.DomainDiskReadOnly{}, "", "open"
		}},
		"serial": {withDisk(func(d *v1.Disk) { d.Serial = "s-1" }), func(d *libvirtxml.DomainDisk) { d.Serial = "s-1" }},
		"PCI address": {withDisk(func(d *v1.Disk) { d.Disk.PciAddress = "0000:02:01.0" }), func(d *libvirtxml.DomainDisk) {
			d.Address = pci(0, 2, 1, 0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := makeGuest().emptyDisk(tc.disk).build(t)
			expectEqual(t, got.Devices.Disks, []libvirtxml.DomainDisk{fileDisk("a", tc.want)})
		})
	}
}

func onBus(bus string, address *libvirtxml.DomainAddress) func(*libvirtxml.DomainDisk) {
	return func(d *libvirtxml.DomainDisk) {
		d.Model, d.Address, d.Target = "", address, &libvirtxml.DomainDiskTarget{Dev: "sda", Bus: bus}
	}
}

// withDisk returns a guest with a virtio disk a that change has changed.
func withDisk(change func(*v1.Disk)) v1.Disk {
	disk := diskOn("a", v1.DiskBusVirtio)
	change(&disk)
	return disk
}

func TestLUN(t *testing.T) {
	got := makeGuest().blockClaim(lunOn("a", "")).build(t)
	expectEqual(t, got.Devices.Disks, []libvirtxml.DomainDisk{fileDisk("a", func(d *libvirtxml.DomainDisk) {
		onBus("scsi", drive(0))(d)
		d.Device = "lun"
		d.Source = &libvirtxml.DomainDiskSource{Block: &libvirtxml.DomainDiskSourceBlock{Dev: "/dev/a"}}
		d.Driver = &libvirtxml.DomainDiskDriver{
			Name: "qemu", Type: "raw", Cache: "none", IO: "native", ErrorPolicy: "stop", Discard: "unmap",
		}
	})})
}

func TestOverlayHasItsWholeBackingChain(t *testing.T) {
	got := makeGuest().containerDisk("a", v1.DiskBusVirtio).build(t)
	expectEqual(t, got.Devices.Disks, []libvirtxml.DomainDisk{fileDisk("a", func(d *libvirtxml.DomainDisk) {
		d.Driver.Type = "qcow2"
		d.Source.File.File = "/var/run/kubevirt-ephemeral-disks/a.qcow2"
		d.BackingStore = &libvirtxml.DomainDiskBackingStore{
			Format: &libvirtxml.DomainDiskFormat{Type: "raw"},
			Source: &libvirtxml.DomainDiskSource{
				File: &libvirtxml.DomainDiskSourceFile{File: "/var/run/kubevirt/container-disks/a/disk/disk.img"},
			},
			BackingStore: &libvirtxml.DomainDiskBackingStore{},
		}
	})})
}

func TestEmptyDrive(t *testing.T) {
	got := makeGuest().devices(func(d *v1.Devices) { d.Disks = []v1.Disk{cdromOn("a", "")} }).build(t)
	expectEqual(t, got.Devices.Disks, []libvirtxml.DomainDisk{fileDisk("a", func(d *libvirtxml.DomainDisk) {
		onBus("sata", drive(0))(d)
		d.Device, d.ReadOnly = "cdrom", &libvirtxml.DomainDiskReadOnly{}
		d.Source, d.BackingStore, d.Driver = nil, nil, &libvirtxml.DomainDiskDriver{Name: "qemu"}
	})})
}

func TestBlockSize(t *testing.T) {
	sized := func(size v1.BlockSize) v1.Disk { return withDisk(func(d *v1.Disk) { d.BlockSize = &size }) }
	known := func(f *domain.DiskFact) {
		f.LogicalBlockSize, f.PhysicalBlockSize, f.DiscardGranularity = 512, 4096, 1024
	}
	for name, tc := range map[string]struct {
		size v1.BlockSize
		want *libvirtxml.DomainDiskBlockIO
	}{
		"custom": {v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 1024, Physical: 2048, DiscardGranularity: ptr.To[uint](8192)}},
			&libvirtxml.DomainDiskBlockIO{LogicalBlockSize: 1024, PhysicalBlockSize: 2048,
				DiscardGranularity: ptr.To[uint](8192)}},
		"of the volume": {v1.BlockSize{MatchVolume: &v1.FeatureState{}},
			&libvirtxml.DomainDiskBlockIO{LogicalBlockSize: 512, PhysicalBlockSize: 4096,
				DiscardGranularity: ptr.To[uint](1024)}},
		"not of the volume": {v1.BlockSize{MatchVolume: off()}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := makeGuest().emptyDisk(sized(tc.size), known).build(t)
			expectEqual(t, got.Devices.Disks[0].BlockIO, tc.want)
		})
	}
	odd := makeGuest().emptyDisk(sized(v1.BlockSize{MatchVolume: &v1.FeatureState{}}), known, func(f *domain.DiskFact) {
		f.DiscardGranularity = 700
	}).build(t)
	if got := *odd.Devices.Disks[0].BlockIO.DiscardGranularity; got != 4096 {
		t.Errorf("a granularity of 700 with blocks of 512 becomes %d, want the physical size as in KubeVirt", got)
	}
	makeGuest().emptyDisk(sized(v1.BlockSize{MatchVolume: &v1.FeatureState{}})).
		expectNotPrepared(t, "spec.domain.devices.disks[0].blockSize.matchVolume")
	makeGuest().emptyDisk(sized(v1.BlockSize{MatchVolume: &v1.FeatureState{}, Custom: &v1.CustomBlockSize{}}), known).
		expectRefused(t, "spec.domain.devices.disks[0].blockSize", "leave one")
}

func TestDiskRefused(t *testing.T) {
	const path = "spec.domain.devices.disks[0]"
	readonly := diskOn("a", v1.DiskBusSATA)
	readonly.Disk.ReadOnly = true
	reserved := lunOn("a", "")
	reserved.LUN.Reservation = true
	onSATA := diskOn("a", v1.DiskBusSATA)
	onSATA.Disk.PciAddress = "0000:02:01.0"
	for field, tc := range map[string]struct {
		guest *guest
		hint  string
	}{
		path + ".disk.bus":        {makeGuest().emptyDisk(diskOn("a", "ide")), "virtio"},
		path + ".cdrom.bus":       {makeGuest().emptyDisk(cdromOn("a", v1.DiskBusVirtio)), "sata"},
		path + ".lun.bus":         {makeGuest().blockClaim(lunOn("a", v1.DiskBusSATA)), "scsi"},
		path + ".lun":             {makeGuest().emptyDisk(lunOn("a", "")), "volumeMode Block"},
		path + ".lun.reservation": {makeGuest().blockClaim(reserved), "not implemented"},
		path + ".disk.readonly":   {makeGuest().emptyDisk(readonly), "cdrom"},
		path + ".disk.pciAddress": {makeGuest().emptyDisk(onSATA), "virtio"},
		path + ".name":            {makeGuest().devices(func(d *v1.Devices) { d.Disks = []v1.Disk{diskOn("a", "")} }), "a"},
		path + ".shareable": {makeGuest().containerDisk("a", v1.DiskBusVirtio).
			devices(func(d *v1.Devices) { d.Disks[0].Shareable = ptr.To(true) }), "qcow2"},
	} {
		t.Run(field, func(t *testing.T) { tc.guest.expectRefused(t, field, tc.hint) })
	}
}

func TestDiskNotPrepared(t *testing.T) {
	const path = "spec.domain.devices.disks[0]"
	for name, change := range map[string]func(*domain.Facts){
		"no fact":           func(f *domain.Facts) { delete(f.Disks, "a") },
		"no path":           func(f *domain.Facts) { f.Disks["a"] = domain.DiskFact{Format: "raw"} },
		"no format":         func(f *domain.Facts) { f.Disks["a"] = domain.DiskFact{Path: "/a"} },
		"no backing format": func(f *domain.Facts) { f.Disks["a"] = domain.DiskFact{Path: "/a", Format: "qcow2", BackingPath: "/b"} },
		"exotic format":     func(f *domain.Facts) { f.Disks["a"] = domain.DiskFact{Path: "/a", Format: "vmdk"} },
	} {
		t.Run(name, func(t *testing.T) {
			makeGuest().emptyDisk(diskOn("a", v1.DiskBusVirtio)).on(change).expectNotPrepared(t, path)
		})
	}
}
