// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apifield "k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
	"github.com/vireo-project/vireo/test/builder"
)

// pluggedVMI returns a running VMI with a root disk, a hotplugged disk "data" and an empty CD-ROM drive "tray".
func pluggedVMI() *v1.VirtualMachineInstance {
	vmi := builder.MakeVMI("vm").ContainerDisk("root", "registry.example/debian:13").Hotpluggable("data",
		"data-claim").Obj()
	vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
		v1.Disk{Name: "tray", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA}}})
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", HotplugVolume: &v1.HotplugVolumeStatus{}}, {Name: "root"}}
	return vmi
}

func TestHotplugRules(t *testing.T) {
	type vmi = *v1.VirtualMachineInstance
	plug := func(name string, device v1.DiskDevice) func(vmi) {
		return func(v vmi) {
			with := builder.MakeVMI("x").Hotpluggable(name, name+"-claim").Obj()
			v.Spec.Volumes = append(v.Spec.Volumes, with.Spec.Volumes...)
			v.Spec.Domain.Devices.Disks = append(v.Spec.Domain.Devices.Disks, v1.Disk{Name: name, DiskDevice: device})
		}
	}
	disk := func(bus v1.DiskBus) v1.DiskDevice { return v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}} }
	withoutDisk := func(v vmi, name string) {
		v.Spec.Domain.Devices.Disks = slices.DeleteFunc(v.Spec.Domain.Devices.Disks,
			func(d v1.Disk) bool { return d.Name == name })
	}
	withoutVolume := func(v vmi, name string) {
		v.Spec.Volumes = slices.DeleteFunc(v.Spec.Volumes, func(d v1.Volume) bool { return d.Name == name })
	}
	insert := func(v vmi) {
		v.Spec.Volumes = append(v.Spec.Volumes, builder.MakeVMI("x").Hotpluggable("tray", "iso").Obj().Spec.Volumes...)
	}
	for _, tc := range []struct {
		name   string
		before func(vmi)
		after  func(vmi)
		want   []string
	}{
		{"nothing", nil, func(vmi) {}, nil},
		{"another order of disks", nil, func(v vmi) { slices.Reverse(v.Spec.Domain.Devices.Disks) }, nil},
		{"plugged on scsi", nil, plug("more", disk(v1.DiskBusSCSI)), nil},
		{"plugged on virtio", nil, plug("more", disk(v1.DiskBusVirtio)), nil},
		{"plugged as LUN", nil, plug("more", v1.DiskDevice{LUN: &v1.LunTarget{Bus: v1.DiskBusSCSI}}), nil},
		{"unplugged", nil, func(v vmi) { withoutDisk(v, "data"); withoutVolume(v, "data") }, nil},
		{"inserted", nil, insert, nil},
		{"ejected", insert, func(v vmi) { withoutVolume(v, "tray") }, nil},
		{
			"sata", nil, plug("more", disk(v1.DiskBusSATA)),
			[]string{"Hotplug configuration for disk [more] requires bus to be 'scsi' or 'virtio'. [sata] is not permitted."},
		},
		{
			"LUN on virtio", nil, plug("more", v1.DiskDevice{LUN: &v1.LunTarget{Bus: v1.DiskBusVirtio}}),
			[]string{"Hotplug configuration for LUN [more] requires bus to be 'scsi'. [virtio] is not permitted."},
		},
		{
			"new CD-ROM drive", nil, plug("more", v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSCSI}}),
			[]string{"Hotplug configuration for [more] requires diskDevice of type 'disk' or 'lun' to be used."},
		},
		{
			"I/O thread on scsi", nil, func(v vmi) {
				plug("more", disk(v1.DiskBusSCSI))(v)
				v.Spec.Domain.Devices.Disks[3].DedicatedIOThread = ptr.To(true)
			},
			[]string{"Hotplug configuration for [more] requires virtio bus for IOThreads."},
		},
		{
			"volume without disk", nil, func(v vmi) { plug("more", disk(v1.DiskBusSCSI))(v); withoutDisk(v, "more") },
			[]string{"mismatch between volumes declared (3) and required (2)", "disk more does not exist"},
		},
		{
			"disk without volume", nil, func(v vmi) { withoutVolume(v, "data") },
			[]string{"mismatch between volumes declared (1) and required (2)"},
		},
		{
			"disk of a volume removed", nil, func(v vmi) { withoutDisk(v, "data") },
			[]string{"mismatch between volumes declared (2) and required (1)", "volume data doesn't have a matching disk"},
		},
		{
			"other claim", nil, func(v vmi) { v.Spec.Volumes[1].PersistentVolumeClaim.ClaimName = "other" },
			[]string{"hotplug volume data, changed"},
		},
		{
			"other claim of a volume that migrates",
			func(v vmi) { v.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "data"}} },
			func(v vmi) { v.Spec.Volumes[1].PersistentVolumeClaim.ClaimName = "other" }, nil,
		},
		{
			"other serial", nil, func(v vmi) { v.Spec.Domain.Devices.Disks[1].Serial = "s" },
			[]string{"hotplug disk data, changed"},
		},
		{
			"permanent removed", nil, func(v vmi) { withoutDisk(v, "root"); withoutVolume(v, "root") },
			[]string{"Number of permanent volumes has changed"},
		},
		{
			"permanent replaced", nil,
			func(v vmi) { v.Spec.Volumes[0].Name, v.Spec.Domain.Devices.Disks[0].Name = "boot", "boot" },
			[]string{"permanent volume boot, not found"},
		},
		{
			"permanent changed", nil, func(v vmi) { v.Spec.Volumes[0].ContainerDisk.Image = "other" },
			[]string{"permanent volume root, changed"},
		},
		{
			"permanent disk changed", nil, func(v vmi) { v.Spec.Domain.Devices.Disks[0].Serial = "s" },
			[]string{"permanent disk root, changed"},
		},
		{
			"plugged although that is disabled",
			func(v vmi) { v.Spec.Domain.Devices.DisableHotplug = true }, plug("more", disk(v1.DiskBusSCSI)),
			[]string{"volume more cannot be plugged: spec.domain.devices.disableHotplug is set"},
		},
		{
			"not a claim but hotplugged", func(v vmi) {
				v.Status.VolumeStatus = append(v.Status.VolumeStatus,
					v1.VolumeStatus{Name: "more", HotplugVolume: &v1.HotplugVolumeStatus{}})
			}, func(v vmi) {
				plug("more", disk(v1.DiskBusSCSI))(v)
				v.Spec.Volumes[2].VolumeSource = v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}}
			},
			[]string{"volume more is not a PVC or DataVolume"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := pluggedVMI()
			if tc.before != nil {
				tc.before(before)
			}
			after := before.DeepCopy()
			tc.after(after)
			var got []string
			for _, err := range validateHotplug(before, after, clusterconfig.Default()) {
				got = append(got, err.Detail)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A disk that is plugged into a VMI without a VM is refused for the errors for which it is refused in a new VMI.
func TestPluggedDisksFollowTheRulesOfNewOnes(t *testing.T) {
	for _, tc := range []struct {
		field  string
		change func(*v1.Disk)
	}{
		{"name", func(d *v1.Disk) { d.Name = "Not_A_Label" }},
		{"disk.pciAddress", func(d *v1.Disk) { d.Disk.Bus, d.Disk.PciAddress = v1.DiskBusVirtio, "somewhere" }},
		{"serial", func(d *v1.Disk) { d.Serial = strings.Repeat("s", 300) }},
		{"cache", func(d *v1.Disk) { d.Cache = "sometimes" }},
		{"io", func(d *v1.Disk) { d.IO = "other" }},
		{"errorPolicy", func(d *v1.Disk) { d.ErrorPolicy = ptr.To[v1.DiskErrorPolicy]("hope") }},
		{"bootOrder", func(d *v1.Disk) { d.BootOrder = ptr.To[uint](0) }},
		{"bootOrder", func(d *v1.Disk) { d.BootOrder = ptr.To[uint](1) }}, // of the root disk
		{"blockSize", func(d *v1.Disk) {
			d.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 512, Physical: 512},
				MatchVolume: &v1.FeatureState{}}
		}},
		{"blockSize.custom.logical", func(d *v1.Disk) { d.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 3, Physical: 4096}} }},
		{"blockSize.custom.physical", func(d *v1.Disk) {
			d.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 512, Physical: 4 << 20}}
		}},
		{"lun.reservation", func(d *v1.Disk) { d.Disk, d.LUN = nil, &v1.LunTarget{Bus: v1.DiskBusSCSI, Reservation: true} }},
		{"", func(d *v1.Disk) { d.LUN = &v1.LunTarget{Bus: v1.DiskBusSCSI} }},
	} {
		before := pluggedVMI()
		before.Spec.Domain.Devices.Disks[0].BootOrder = ptr.To[uint](1)
		after, plugged := before.DeepCopy(), builder.MakeVMI("x").Hotpluggable("more", "claim").Obj()
		disk := v1.Disk{Name: "more", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}}}
		tc.change(&disk)
		plugged.Spec.Volumes[0].Name = disk.Name
		after.Spec.Volumes = append(after.Spec.Volumes, plugged.Spec.Volumes...)
		after.Spec.Domain.Devices.Disks = append(after.Spec.Domain.Devices.Disks, disk)
		want := strings.TrimSuffix("spec.domain.devices.disks[3]."+tc.field, ".")
		errs := validateHotplug(before, after, clusterconfig.Default())
		if !slices.ContainsFunc(errs, func(err *apifield.Error) bool { return err.Field == want }) {
			t.Errorf("%s: got %v", want, errs)
		}
		created := slices.Concat(validateInstance(apifield.NewPath("spec"), &after.Spec, clusterconfig.Default()),
			specsupport.Refusals(specsupport.UnimplementedInVMI(apifield.NewPath("spec"), &after.Spec)),
			specsupport.ImpossibleInVMI(apifield.NewPath("spec"), &after.Spec))
		for _, err := range errs {
			if !slices.ContainsFunc(created, func(c *apifield.Error) bool { return c.Error() == err.Error() }) {
				t.Errorf("a new VMI is neither refused nor kept from starting for: %v", err)
			}
		}
	}
}
