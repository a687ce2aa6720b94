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

// noDiscard marks a disk without discard.
const noDiscard = "none"

func filled(f *domain.DiskFact) { f.Filled = true }

func buffered(f *domain.DiskFact) { f.DirectIO = false }

func TestDiskDriver(t *testing.T) {
	for name, tc := range map[string]struct {
		disk   v1.Disk
		change func(*domain.DiskFact)
		want   libvirtxml.DomainDiskDriver
	}{
		"default": {withDisk(func(*v1.Disk) {}), nil, libvirtxml.DomainDiskDriver{Cache: "none"}},
		"without direct I/O": {withDisk(func(*v1.Disk) {}), buffered,
			libvirtxml.DomainDiskDriver{Cache: "writethrough"}},
		"writeback": {withDisk(func(d *v1.Disk) { d.Cache = v1.CacheWriteBack }), buffered,
			libvirtxml.DomainDiskDriver{Cache: "writeback"}},
		"writethrough where none would do": {withDisk(func(d *v1.Disk) { d.Cache = v1.CacheWriteThrough }), nil,
			libvirtxml.DomainDiskDriver{Cache: "writethrough"}},
		"native": {withDisk(func(d *v1.Disk) { d.IO = v1.IONative }), nil,
			libvirtxml.DomainDiskDriver{Cache: "none", IO: "native"}},
		"threads": {withDisk(func(d *v1.Disk) { d.IO = v1.IOThreads }), buffered,
			libvirtxml.DomainDiskDriver{Cache: "writethrough", IO: "threads"}},
		"block device": {withDisk(func(*v1.Disk) {}), func(f *domain.DiskFact) { f.Block = true },
			libvirtxml.DomainDiskDriver{Cache: "none", IO: "native"}},
		"file without holes": {withDisk(func(*v1.Disk) {}), filled, libvirtxml.DomainDiskDriver{Cache: "none", IO: "native"}},
		"file without holes, buffered": {withDisk(func(*v1.Disk) {}), func(f *domain.DiskFact) { f.Filled, f.DirectIO = true, false },
			libvirtxml.DomainDiskDriver{Cache: "writethrough"}},
		"file without holes by threads": {withDisk(func(d *v1.Disk) { d.IO = v1.IOThreads }), filled,
			libvirtxml.DomainDiskDriver{Cache: "none", IO: "threads"}},
		"file without holes that is only read": {withDisk(func(d *v1.Disk) { d.Disk.ReadOnly = true }), filled,
			libvirtxml.DomainDiskDriver{Cache: "none", Discard: noDiscard}},
		"volume that keeps its space": {withDisk(func(*v1.Disk) {}), func(f *domain.DiskFact) { f.KeepsSpace = true },
			libvirtxml.DomainDiskDriver{Cache: "none", Discard: noDiscard}},
		"shareable": {withDisk(func(d *v1.Disk) { d.Shareable = ptr.To(true) }), nil, libvirtxml.DomainDiskDriver{Cache: "none"}},
		"error policy": {withDisk(func(d *v1.Disk) { d.ErrorPolicy = ptr.To(v1.DiskErrorPolicyReport) }), nil,
			libvirtxml.DomainDiskDriver{Cache: "none", ErrorPolicy: "report"}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.change == nil {
				tc.change = func(*domain.DiskFact) {}
			}
			if tc.want.ErrorPolicy == "" {
				tc.want.ErrorPolicy = "stop"
			}
			tc.want.Name, tc.want.Type = "qemu", "raw"
			switch tc.want.Discard {
			case "":
				tc.want.Discard = "unmap"
			case noDiscard:
				tc.want.Discard = ""
			}
			got := makeGuest().emptyDisk(tc.disk, tc.change).build(t)
			expectEqual(t, got.Devices.Disks[0].Driver, &tc.want)
			expectEqual(t, got.Devices.Disks[0].Shareable != nil, tc.disk.Shareable != nil)
		})
	}
}

func TestBlockMultiQueue(t *testing.T) {
	queues := func(cores uint32) []libvirtxml.DomainDisk {
		return makeGuest().emptyDisk(diskOn("a", v1.DiskBusVirtio)).emptyDisk(diskOn("b", v1.DiskBusSATA)).
			domainSpec(func(d *v1.DomainSpec) {
				d.CPU = &v1.CPU{Cores: cores}
				d.Devices.BlockMultiQueue = ptr.To(true)
			}).build(t).Devices.Disks
	}
	expectEqual(t, queues(3)[0].Driver.Queues, ptr.To[uint](3))
	expectEqual(t, queues(300)[0].Driver.Queues, ptr.To[uint](256))
	expectEqual(t, queues(3)[1].Driver.Queues, nil)
}

func TestDiskDriverRefused(t *testing.T) {
	const path = "spec.domain.devices.disks[0]"
	for name, tc := range map[string]struct {
		disk        v1.Disk
		change      func(*domain.DiskFact)
		field, hint string
	}{
		"no direct I/O for none": {withDisk(func(d *v1.Disk) { d.Cache = v1.CacheNone }), buffered, path + ".cache", "writethrough"},
		"unknown cache":          {withDisk(func(d *v1.Disk) { d.Cache = "some" }), buffered, path + ".cache", "writeback"},
		"shareable cached": {withDisk(func(d *v1.Disk) { d.Cache, d.Shareable = v1.CacheWriteBack, ptr.To(true) }), buffered,
			path + ".cache", "shareable"},
		"shareable without direct I/O": {withDisk(func(d *v1.Disk) { d.Shareable = ptr.To(true) }), buffered,
			path + ".shareable", "block volume"},
		"native with a cache": {withDisk(func(d *v1.Disk) { d.IO = v1.IONative }), buffered, path + ".io", "threads"},
		"unknown io":          {withDisk(func(d *v1.Disk) { d.IO = "fast" }), buffered, path + ".io", "native"},
		"unknown error policy": {withDisk(func(d *v1.Disk) { d.ErrorPolicy = ptr.To[v1.DiskErrorPolicy]("shrug") }), buffered,
			path + ".errorPolicy", "enospace"},
	} {
		t.Run(name, func(t *testing.T) {
			makeGuest().emptyDisk(tc.disk, tc.change).expectRefused(t, tc.field, tc.hint)
		})
	}
}
