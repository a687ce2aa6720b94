// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/test/fakes/libvirt"
)

func TestDiskBytes(t *testing.T) {
	info := func(capacity, request, overhead string, mode corev1.PersistentVolumeMode) *v1.PersistentVolumeClaimInfo {
		out := &v1.PersistentVolumeClaimInfo{VolumeMode: &mode, FilesystemOverhead: ptr.To(v1.Percent(overhead))}
		if capacity != "" {
			out.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(capacity)}
		}
		if request != "" {
			out.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(request)}
		}
		return out
	}
	const fs, block = corev1.PersistentVolumeFilesystem, corev1.PersistentVolumeBlock
	for name, tc := range map[string]struct {
		info *v1.PersistentVolumeClaimInfo
		want uint64
	}{
		"a device":                         {info("2Gi", "2Gi", "0", block), 2 << 30},
		"a device that is still to grow":   {info("1Gi", "2Gi", "0", block), 1 << 30},
		"a volume larger than requested":   {info("3Gi", "2Gi", "0", block), 2 << 30},
		"a file system":                    {info("1000Mi", "", "0.055", fs), 945 << 20},
		"whole MiB":                        {info("1Gi", "", "0.055", fs), 967 << 20},
		"a file system without overhead":   {info("1Gi", "", "0", fs), 1 << 30},
		"an overhead of everything":        {info("1Gi", "", "1", fs), 0},
		"an overhead that is none":         {info("1Gi", "", "much", fs), 0},
		"an overhead that is no number":    {info("1Gi", "", "NaN", fs), 0},
		"a negative overhead":              {info("1Gi", "", "-1", fs), 0},
		"a claim whose size is not known":  {info("", "", "0.055", fs), 0},
		"a device whose size is not known": {info("", "", "0", block), 0},
		"an overhead that is not set":      {&v1.PersistentVolumeClaimInfo{Capacity: info("1Gi", "", "", fs).Capacity}, 0},
		"a claim smaller than one MiB":     {info("1000Ki", "", "0.055", fs), 0},
	} {
		if got := DiskBytes(tc.info); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestImageBytes(t *testing.T) {
	info := func(mode corev1.PersistentVolumeMode, overhead *v1.Percent) *v1.PersistentVolumeClaimInfo {
		return &v1.PersistentVolumeClaimInfo{VolumeMode: &mode, FilesystemOverhead: overhead, Capacity: corev1.ResourceList{
			corev1.ResourceStorage: resource.MustParse("1Gi")}}
	}
	const fs = corev1.PersistentVolumeFilesystem
	for name, tc := range map[string]struct {
		info                 *v1.PersistentVolumeClaimInfo
		allocated, available uint64
		want                 uint64
	}{
		"a claim that has all of its space": {info(fs, ptr.To[v1.Percent]("0.055")), 0, 1 << 30, 967 << 20},
		"a shared file system":              {info(fs, ptr.To[v1.Percent]("0.055")), 1 << 20, 1 << 40, 967 << 20},
		"a file system that needs more":     {info(fs, ptr.To[v1.Percent]("0.055")), 500 << 20, 400 << 20, 850 << 20},
		"a full file system":                {info(fs, ptr.To[v1.Percent]("0.055")), 900 << 20, 0, 850 << 20},
		"an overhead that is not known":     {info(fs, nil), 0, 1 << 30, 0},
	} {
		if got := ImageBytes(tc.info, &hypervisor.Volume{Allocation: tc.allocated}, tc.available); got != tc.want {
			t.Errorf("%s: %d MiB, want %d", name, got>>20, tc.want>>20)
		}
	}
}

func TestImagesAreResizedBeforeTheStart(t *testing.T) {
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	disk := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "v", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{}}}}
	}
	withOverhead := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.FilesystemOverhead = ptr.To[v1.Percent]("0.055")
	}
	grown := func(capacity string, changes ...func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
		return vmiWith(claim, append(
			[]func(*v1.VirtualMachineInstance){claimOf(capacity, corev1.PersistentVolumeFilesystem), disk, withOverhead},
			changes...)...)
	}
	raw := func(bytes, allocated uint64) hypervisor.Volume {
		return hypervisor.Volume{Name: "disk.img", Format: "raw", Capacity: bytes, Allocation: allocated}
	}
	host := v1.VolumeSource{HostDisk: &v1.HostDisk{Path: "/d/disk.img", Type: v1.HostDiskExistsOrCreate,
		Capacity: resource.MustParse("2Gi")}}
	const before, after, room = 100 << 20, 967 << 20, 9676 << 20 // 94.5 % of 1 GiB, and of the 10 GiB that are free
	for name, tc := range map[string]struct {
		vmi    *v1.VirtualMachineInstance
		image  hypervisor.Volume
		fails  bool
		want   int64
		filled bool
	}{
		"a claim that has grown":          {vmi: grown("1Gi"), image: raw(before, 0), want: after},
		"an image without holes keeps so": {vmi: grown("1Gi"), image: raw(before, before), want: after, filled: true},
		"a claim that has not":            {vmi: grown("100Mi"), image: raw(before, 0), want: before},
		"less room than the claim has":    {vmi: grown("20Gi"), image: raw(before, 0), want: room},
		"no room":                         {vmi: grown("20Gi"), image: raw(room, 0), want: room},
		"libvirt refuses":                 {vmi: grown("1Gi"), image: raw(before, 0), fails: true, want: before},
		"a guest wrote a header":          {vmi: grown("1Gi"), image: hypervisor.Volume{Name: "disk.img", Format: "qcow2", Capacity: 7}, want: 7},
		"a CD-ROM":                        {vmi: grown("1Gi", asCDRom), image: raw(before, 0), want: before},
		"a read-only disk":                {vmi: grown("1Gi", func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.Disks[0].Disk.ReadOnly = true }), image: raw(before, 0), want: before},
		"a read-only claim": {vmi: grown("1Gi", func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Volumes[0].PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ReadOnly: true}}
		}), image: raw(before, 0), want: before},
		"a guest that migrates": {vmi: grown("1Gi", func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Running }), image: raw(before, 0), want: before},
		"a file of the node":    {vmi: vmiWith(host, disk), image: raw(before, 0), want: before},
	} {
		t.Run(name, func(t *testing.T) {
			launcher := libvirt.NewNode().Launcher("pod")
			launcher.AddFile(diskDir, tc.image)
			if tc.fails {
				launcher.Fail("resize", errors.New("no"))
			}
			for range 2 {
				got, err := Prepare(t.Context(), launcher, content{}.write(t), limits, tc.vmi)
				if err != nil {
					t.Fatal(err)
				}
				if fact := got.Disks["v"]; fact.CapacityBytes != tc.want || fact.Filled != tc.filled {
					t.Errorf("%d bytes, filled %t; want %d, %t", fact.CapacityBytes, fact.Filled, tc.want, tc.filled)
				}
			}
		})
	}
}
