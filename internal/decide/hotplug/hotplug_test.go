// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hotplug_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/hotplug"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/test/builder"
)

type (
	spec = v1.VirtualMachineInstanceSpec
	vmi  = v1.VirtualMachineInstance
)

// started returns a template with a root disk, a hotpluggable disk "data" and an empty CD-ROM drive "tray", and the
// instance of it.
func started() (*spec, *vmi) {
	of := builder.MakeVMI("vm").ContainerDisk("root", "image").Hotpluggable("data", "data-claim").Obj()
	of.Spec.Domain.Devices.Disks = append(of.Spec.Domain.Devices.Disks, cdrom("tray"))
	template := of.Spec.DeepCopy()
	of.Status.Phase = v1.Running
	of.Status.VolumeStatus = []v1.VolumeStatus{plugged("data"), {Name: "root"}}
	return template, of
}

func cdrom(name string) v1.Disk {
	return v1.Disk{Name: name, DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}}
}

func plugged(name string) v1.VolumeStatus {
	return v1.VolumeStatus{Name: name, Phase: v1.VolumeReady, HotplugVolume: &v1.HotplugVolumeStatus{}}
}

// insert adds a hotpluggable volume without a disk at the front.
func insert(s *spec, name, claim string) {
	s.Volumes = slices.Insert(s.Volumes, 0, builder.MakeVMI("x").Hotpluggable(name, claim).Obj().Spec.Volumes...)
}

// add adds a hotpluggable volume with a disk.
func add(s *spec, name, claim string) {
	insert(s, name, claim)
	s.Domain.Devices.Disks = slices.Insert(s.Domain.Devices.Disks, 0,
		builder.MakeVMI("x").Hotpluggable(name, claim).Obj().Spec.Domain.Devices.Disks...)
}

// describe lists the volumes with their claims, and the disks.
func describe(s *spec) string {
	var out []string
	for i := range s.Volumes {
		out = append(out, strings.TrimSuffix(s.Volumes[i].Name+"="+s.Volumes[i].WrittenClaim(), "="))
	}
	slices.Sort(out)
	for i := range s.Domain.Devices.Disks {
		out = append(out, "disk "+s.Domain.Devices.Disks[i].Name)
	}
	slices.Sort(out[len(s.Volumes):])
	return strings.Join(out, ", ")
}

func TestFollow(t *testing.T) {
	for _, tc := range []struct {
		name     string
		template func(*spec)
		instance func(*vmi)
		want     string
		pending  bool
		problem  string
		restart  bool
	}{
		{"nothing", nil, nil, "data=data-claim, root, disk data, disk root, disk tray", false, "", false},
		{
			"a volume that is not there yet", nil, func(v *vmi) { v.Status.VolumeStatus[0].Phase = v1.VolumeBound },
			"data=data-claim, root, disk data, disk root, disk tray", true, "", false,
		},
		{
			"plugged", func(s *spec) { add(s, "more", "more-claim") }, nil,
			"data=data-claim, more=more-claim, root, disk data, disk more, disk root, disk tray", true, "", false,
		},
		{
			"plugged without a disk", func(s *spec) { insert(s, "more", "more-claim") }, nil,
			"data=data-claim, more=more-claim, root, disk data, disk more, disk root, disk tray", true, "", false,
		},
		{
			"plugged by its DataVolume", func(s *spec) {
				add(s, "more", "")
				s.Volumes[0].VolumeSource = v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "dv", Hotpluggable: true}}
			}, nil, "data=data-claim, more=dv, root, disk data, disk more, disk root, disk tray", true, "", false,
		},
		{
			"unplugged", func(s *spec) { hotplug.Remove(s, "data") }, nil, "root, disk root, disk tray", true, "", false,
		},
		{
			"swapped: the new one waits", func(s *spec) { s.Volumes[1].PersistentVolumeClaim.ClaimName = "other" }, nil,
			"root, disk root, disk tray", true, "", false,
		},
		{
			"swapped: the former one is gone", func(s *spec) { s.Volumes[1].PersistentVolumeClaim.ClaimName = "other" },
			func(v *vmi) {
				hotplug.Remove(&v.Spec, "data")
				v.Status.VolumeStatus = v.Status.VolumeStatus[1:]
			}, "data=other, root, disk data, disk root, disk tray", true, "", false,
		},
		{
			"a backup is made", nil, func(v *vmi) {
				v.Spec.UtilityVolumes = []v1.UtilityVolume{{Name: "target"}}
				v.Status.VolumeStatus = append(v.Status.VolumeStatus, plugged("target"))
			}, "data=data-claim, root, disk data, disk root, disk tray", false, "", false,
		},
		{
			"a medium is inserted", func(s *spec) { insert(s, "tray", "iso") }, nil,
			"data=data-claim, root, tray=iso, disk data, disk root, disk tray", true, "", false,
		},
		{
			"a medium is ejected", nil, func(v *vmi) {
				insert(&v.Spec, "tray", "iso")
				v.Status.VolumeStatus = append(v.Status.VolumeStatus, plugged("tray"))
			}, "data=data-claim, root, disk data, disk root, disk tray", true, "", false,
		},
		{
			"the drive is removed with its medium", func(s *spec) {
				s.Domain.Devices.Disks = s.Domain.Devices.Disks[:2]
			}, func(v *vmi) {
				insert(&v.Spec, "tray", "iso")
				v.Status.VolumeStatus = append(v.Status.VolumeStatus, plugged("tray"))
			}, "data=data-claim, root, disk data, disk root, disk tray", true, "", true,
		},
		{
			"a sata disk", func(s *spec) { add(s, "more", "c"); s.Domain.Devices.Disks[0].Disk.Bus = v1.DiskBusSATA }, nil,
			"data=data-claim, root, disk data, disk root, disk tray", false,
			"Hotplug configuration for disk [more] requires bus to be 'scsi' or 'virtio'. [sata] is not permitted.", true,
		},
		{
			"a LUN on virtio", func(s *spec) {
				add(s, "more", "c")
				s.Domain.Devices.Disks[0].DiskDevice = v1.DiskDevice{LUN: &v1.LunTarget{Bus: v1.DiskBusVirtio}}
			}, nil,
			"data=data-claim, root, disk data, disk root, disk tray", false,
			"Hotplug configuration for LUN [more] requires bus to be 'scsi'. [virtio] is not permitted.", true,
		},
		{
			"a CD-ROM drive with its medium", func(s *spec) {
				insert(s, "dvd", "c")
				s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, cdrom("dvd"))
			}, nil,
			"data=data-claim, root, disk data, disk root, disk tray", false,
			"Hotplug configuration for [dvd] requires diskDevice of type 'disk' or 'lun' to be used.", true,
		},
		{
			"an empty CD-ROM drive", func(s *spec) { s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, cdrom("dvd")) },
			nil, "data=data-claim, root, disk data, disk root, disk tray", false, "", true,
		},
		{
			"a disk is changed", func(s *spec) { s.Domain.Devices.Disks[1].Serial = "s" }, nil,
			"data=data-claim, root, disk data, disk root, disk tray", false, "", true,
		},
		{
			"a volume that is not hotpluggable",
			func(s *spec) { add(s, "more", "c"); s.Volumes[0].PersistentVolumeClaim.Hotpluggable = false }, nil,
			"data=data-claim, root, disk data, disk root, disk tray", false, "", true,
		},
		{
			"a volume is no longer hotpluggable", func(s *spec) { s.Volumes[1].PersistentVolumeClaim.Hotpluggable = false }, nil,
			"data=data-claim, root, disk data, disk root, disk tray", false, "", true,
		},
		{
			"a hotpluggable volume of the launcher Pod is removed", func(s *spec) { hotplug.Remove(s, "data") }, func(v *vmi) {
				v.Status.VolumeStatus[0].HotplugVolume = nil
			}, "data=data-claim, root, disk data, disk root, disk tray", false, "", true,
		},
		{
			"another order", func(s *spec) { slices.Reverse(s.Volumes) }, nil,
			"data=data-claim, root, disk data, disk root, disk tray", false, "", false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			template, instance := started()
			base := template.DeepCopy()
			if tc.template != nil {
				tc.template(template)
			}
			if tc.instance != nil {
				tc.instance(instance)
				base = instance.Spec.DeepCopy()
				if strings.HasPrefix(tc.name, "swapped") || base.UtilityVolumes != nil {
					base, _ = started()
				}
			}
			unchanged := template.DeepCopy()
			before, now := base.DeepCopy(), template.DeepCopy()
			hotplug.Equalize(before, now, instance)
			if restart := !equality.Semantic.DeepEqual(before, now); restart != tc.restart {
				t.Errorf("needs a restart: %v; %s and %s", restart, describe(before), describe(now))
			}
			got := hotplug.Follow(instance, template)
			if got.Pending != tc.pending || got.Problem != tc.problem {
				t.Errorf("got %+v", got)
			}
			if text := describe(&instance.Spec); text != tc.want {
				t.Errorf("got %s, want %s", text, tc.want)
			}
			if !equality.Semantic.DeepEqual(template, unchanged) {
				t.Error("the template was changed")
			}
			again := instance.DeepCopy()
			hotplug.Follow(again, template)
			if !equality.Semantic.DeepEqual(again.Spec, instance.Spec) {
				t.Errorf("a second call changes it to %s", describe(&again.Spec))
			}
		})
	}
}

// Disks and LUNs can be plugged on the buses of the table, which KubeVirt's messages name.
func TestProblemFollowsTheTableOfBuses(t *testing.T) {
	for _, name := range diskbus.Names("") {
		for _, kind := range []string{diskbus.Disk, diskbus.LUN, diskbus.CDRom} {
			disk := builder.MakeDisk("a", kind, name)
			if problem := hotplug.Problem(&disk); (problem == "") != diskbus.Of(name).Plugs(kind) {
				t.Errorf("%s on %s: %q", kind, name, problem)
			}
			none := builder.MakeDisk("a", kind, "")
			if problem := hotplug.Problem(&none); diskbus.Of(name).Plugs(kind) &&
				!strings.Contains(problem, "'"+string(name)+"'") {
				t.Errorf("%q, of Problem in internal/decide/hotplug/disk.go, does not name the bus %s, on which a %s can be plugged",
					problem, name, kind)
			}
		}
	}
}
