// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"fmt"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestDiskTargets(t *testing.T) {
	g := makeGuest()
	for i, bus := range []v1.DiskBus{"virtio", "sata", "virtio", "scsi", "usb", "sata", "sata", "sata", "sata", "sata", "sata", "scsi"} {
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
		"vda", "sda 0:0", "vdb", "sdb 0:0", "sdc", "sdd 0:1", "sde 0:2", "sdf 0:3", "sdg 0:4", "sdh 0:5", "sdi 1:0", "sdj 0:1",
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
