// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestDisks(t *testing.T) {
	bus := func(b v1.DiskBus) option { return hardDisk(func(d *v1.Disk) { d.Disk.Bus = b }) }
	cdrom := func(b v1.DiskBus) option {
		return disk(v1.Disk{Name: "cd", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: b}}}, image())
	}
	lun := func(l v1.LunTarget, source *v1.VolumeSource) option {
		return disk(v1.Disk{Name: "lun", DiskDevice: v1.DiskDevice{LUN: &l}}, source)
	}
	size := func(logical, physical uint) option {
		return hardDisk(func(d *v1.Disk) {
			d.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: logical, Physical: physical}}
		})
	}
	serial := func(s string) option { return hardDisk(func(d *v1.Disk) { d.Serial = s }) }
	const first = "spec.domain.devices.disks[0]"
	const custom = first + ".blockSize.custom."
	decide(t, []testCase{
		{name: "virtio disk", object: vmi(bus(v1.DiskBusVirtio))},
		{name: "sata disk", object: vmi(bus(v1.DiskBusSATA))},
		{name: "scsi disk", object: vmi(bus(v1.DiskBusSCSI))},
		{name: "usb disk", object: vmi(bus(v1.DiskBusUSB))},
		{name: "disk without a bus", object: vmi(bus(""))},
		{name: "ide disk", object: vmi(bus("ide")), fields: []string{first + ".disk.bus"}, says: "IDE bus is not supported"},
		{name: "ide disk in a template", object: vm(bus("ide")), fields: []string{"spec.template.spec.domain.devices.disks[0].disk.bus"}},
		{name: "disk on an unknown bus", object: vmi(bus("nvme")), fields: []string{first + ".disk.bus"}, says: "is set with an unrecognized bus nvme, must be one of:"},
		{name: "disk without a target", object: vmi(disk(v1.Disk{Name: "root"}, image()))},
		{name: "disk with two targets", object: vmi(disk(v1.Disk{Name: "root", DiskDevice: v1.DiskDevice{
			Disk: &v1.DiskTarget{Bus: "virtio"}, CDRom: &v1.CDRomTarget{Bus: "sata"}}}, image())), fields: []string{first},
			says: "can only have a single target type defined"},
		{name: "read-only virtio disk", object: vmi(hardDisk(func(d *v1.Disk) { d.Disk.ReadOnly = true }))},
		{name: "read-only sata disk", object: vmi(hardDisk(func(d *v1.Disk) { d.Disk.ReadOnly, d.Disk.Bus = true, "sata" })),
			fields: []string{first + ".disk.bus"}, says: "sata hard-disks do not support read-only."},
		{name: "read-only disk without a bus", object: vmi(hardDisk(func(d *v1.Disk) { d.Disk.ReadOnly, d.Disk.Bus = true, "" })),
			fields: []string{first + ".disk.bus"}},
		{name: "read-only disk without a bus in a template", object: vm(hardDisk(func(d *v1.Disk) { d.Disk.ReadOnly, d.Disk.Bus = true, "" })),
			says: "keeps the VM from starting"},
		{name: "sata cdrom", object: vmi(cdrom("sata"))},
		{name: "scsi cdrom", object: vmi(cdrom("scsi"))},
		{name: "usb cdrom", object: vmi(cdrom("usb"))},
		{name: "cdrom without a bus", object: vmi(cdrom(""))},
		{name: "virtio cdrom", object: vmi(cdrom("virtio")), fields: []string{first + ".cdrom.bus"}, says: "Bus type virtio is invalid for CD-ROM device"},
		{name: "empty cdrom", object: vmi(disk(v1.Disk{Name: "cd", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}}, nil))},
		{name: "empty cdrom without the gate", config: without("DeclarativeHotplugVolumes"),
			object: vmi(disk(v1.Disk{Name: "cd", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}}, nil)),
			fields: []string{first + ".name"},
			says:   "DeclarativeHotplugVolumes feature gate not enabled, cannot define an empty CD-ROM disk"},
		{name: "disk without a volume", object: vmi(disk(v1.Disk{Name: "root"}, nil)), fields: []string{first + ".name"}, says: "'root' not found."},
		{name: "disk without a volume in a template", object: vm(disk(v1.Disk{Name: "root"}, nil)),
			fields: []string{"spec.template.spec.domain.devices.disks[0].name"}},
		{name: "volume without a disk", object: vmi(volume("root", *image()))},
		{name: "two disks of a name", object: vmi(hardDisk(func(*v1.Disk) {}), disk(v1.Disk{Name: "root"}, nil)),
			fields: []string{"spec.domain.devices.disks[1].name"}, says: "must not have the same Name."},
		{name: "disk name that is no label", object: vmi(disk(v1.Disk{Name: "Root_Disk"}, image())), fields: []string{first + ".name"}},
		{name: "LUN of a claim", object: vmi(lun(v1.LunTarget{Bus: "scsi"}, claim("data")))},
		{name: "LUN of a data volume", object: vmi(lun(v1.LunTarget{Bus: "scsi"}, &v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "data"}}))},
		{name: "LUN of an image", object: vmi(lun(v1.LunTarget{Bus: "scsi"}, image())), fields: []string{first + ".lun"},
			says: "can only be mapped to a DataVolume or PersistentVolumeClaim volume."},
		{name: "LUN with reservations", object: vmi(lun(v1.LunTarget{Bus: "scsi", Reservation: true}, claim("data")))},
		{name: "LUN with reservations on sata", object: vmi(lun(v1.LunTarget{Bus: "sata", Reservation: true}, claim("data"))), says: "keeps the VM from starting"},
		{name: "LUN without a bus", object: vmi(lun(v1.LunTarget{}, claim("data")))},
		{name: "boot order", object: vmi(hardDisk(func(d *v1.Disk) { d.BootOrder = ptr.To(uint(1)) }))},
		{name: "boot order of zero", object: vmi(hardDisk(func(d *v1.Disk) { d.BootOrder = ptr.To(uint(0)) })), fields: []string{first + ".bootOrder"},
			says: "must have a boot order > 0, if supplied"},
		{name: "boot order twice", object: vmi(hardDisk(func(d *v1.Disk) { d.BootOrder = ptr.To(uint(1)) }),
			disk(v1.Disk{Name: "data", BootOrder: ptr.To(uint(1))}, claim("data"))),
			fields: []string{"spec.domain.devices.disks[1].bootOrder"},
			says:   "already set for a different device."},
		{name: "boot order of a disk and an interface", object: vmi(hardDisk(func(d *v1.Disk) { d.BootOrder = ptr.To(uint(1)) }),
			onPod(func(i *v1.Interface) { i.BootOrder = ptr.To(uint(1)) })), fields: []string{at("interfaces[0].bootOrder")},
			says: "already set for a different device."},
		{name: "serial number", object: vmi(serial("SN-1.2_3+4"))},
		{name: "serial number with a blank", object: vmi(serial("SN 1")), fields: []string{first + ".serial"},
			says: "must be made up of the following characters [A-Za-z0-9_.+-], if specified"},
		{name: "serial number that is too long", object: vmi(serial(strings.Repeat("1", 257))), fields: []string{first + ".serial"},
			says: "must be less than or equal to 256 in length, if specified"},
		{name: "serial number that is too long for scsi", object: vmi(hardDisk(func(d *v1.Disk) {
			d.Serial, d.Disk = strings.Repeat("1", 37), &v1.DiskTarget{Bus: v1.DiskBusSCSI}
		})), says: "keeps the VM from starting"},
		{name: "longest serial number", object: vmi(serial(strings.Repeat("1", 256)))},
		{name: "cache", object: vmi(hardDisk(func(d *v1.Disk) { d.Cache = v1.CacheWriteBack }))},
		{name: "unknown cache", object: vmi(hardDisk(func(d *v1.Disk) { d.Cache = "unsafe" })), fields: []string{first + ".cache"}, says: "has invalid value unsafe"},
		{name: "I/O mode", object: vmi(hardDisk(func(d *v1.Disk) { d.IO = v1.IONative }))},
		{name: "unknown I/O mode", object: vmi(hardDisk(func(d *v1.Disk) { d.IO = "io_uring" })), fields: []string{first + ".io"},
			says: "is not supported. Supported modes are: native, threads."},
		{name: "error policy", object: vmi(hardDisk(func(d *v1.Disk) { d.ErrorPolicy = ptr.To(v1.DiskErrorPolicyReport) }))},
		{name: "unknown error policy", object: vmi(hardDisk(func(d *v1.Disk) { d.ErrorPolicy = ptr.To(v1.DiskErrorPolicy("retry")) })),
			fields: []string{first + ".errorPolicy"}, says: "has invalid value"},
		{name: "PCI address", object: vmi(hardDisk(func(d *v1.Disk) { d.Disk.PciAddress = "0000:04:10.0" }))},
		{name: "PCI address off virtio", object: vmi(hardDisk(func(d *v1.Disk) { d.Disk.PciAddress, d.Disk.Bus = "0000:04:10.0", "scsi" })),
			fields: []string{first + ".disk.pciAddress"}, says: "setting a PCI address is only possible with bus type virtio."},
		{name: "malformed PCI address", object: vmi(hardDisk(func(d *v1.Disk) { d.Disk.PciAddress = "0000:80.10.1" })),
			fields: []string{first + ".disk.pciAddress"}, says: "has malformed PCI address (0000:80.10.1)."},
		{name: "dedicated I/O thread", object: vmi(hardDisk(func(d *v1.Disk) { d.DedicatedIOThread = ptr.To(true) }))},
		{name: "dedicated I/O thread off virtio", object: vmi(hardDisk(func(d *v1.Disk) { d.DedicatedIOThread, d.Disk.Bus = ptr.To(true), "sata" })),
			fields: []string{first + ".dedicatedIOThread"}, says: "IOThreads are not supported for disks on a sata bus"},
		{name: "block size", object: vmi(size(512, 4096))},
		{name: "block size of nothing", object: vmi(size(0, 0)), fields: []string{custom + "logical", custom + "physical"},
			says: "is less than the supported minimum size of 512"},
		{name: "logical beyond physical", object: vmi(size(4096, 512)), fields: []string{custom + "logical"}, says: "must be the same or less than the physical size"},
		{name: "block size that is no power of two", object: vmi(size(1536, 4096)), fields: []string{custom + "logical"}, says: "is not a power of 2"},
		{name: "block size beyond 2Mi", object: vmi(size(512, 4<<20)), fields: []string{custom + "physical"},
			says: "is greater than the supported maximum size of 2097152"},
		{name: "block size of a sata disk", object: vmi(hardDisk(func(d *v1.Disk) {
			d.Disk.Bus, d.BlockSize = "sata", &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 4096, Physical: 4096}}
		})), fields: []string{custom + "logical"}, says: "must be 512 for SATA devices"},
		{name: "discard granularity", object: vmi(hardDisk(func(d *v1.Disk) {
			d.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 512, Physical: 512,
				DiscardGranularity: ptr.To(uint(700))}}
		})), fields: []string{custom + "discardGranularity"}, says: "must be multiples of logical size 512"},
		{name: "block size both ways", object: vmi(hardDisk(func(d *v1.Disk) {
			d.BlockSize = &v1.BlockSize{MatchVolume: on(), Custom: &v1.CustomBlockSize{Logical: 512, Physical: 512}}
		})), fields: []string{first + ".blockSize"},
			says: "Block size matching can't be enabled together with a custom value"},
		{name: "every fault at once", object: vmi(hardDisk(func(d *v1.Disk) { d.Serial, d.Cache, d.IO = "a b", "unsafe", "io_uring" })),
			fields: []string{first + ".serial", first + ".cache", first + ".io"}},
	})
}

func TestVolumes(t *testing.T) {
	one := func(source v1.VolumeSource) option { return disk(v1.Disk{Name: "data"}, &source) }
	hostDisk := func(h v1.HostDisk) option { return one(v1.VolumeSource{HostDisk: &h}) }
	metrics := &v1.VolumeSource{DownwardMetrics: &v1.DownwardMetricsVolumeSource{}}
	dump := func(name string) option {
		return volume(name, v1.VolumeSource{MemoryDump: &v1.MemoryDumpVolumeSource{PersistentVolumeClaimVolumeSource: *claim(
			"dump").PersistentVolumeClaim}})
	}
	hosts := gates("HostDisk")
	const first = "spec.volumes[0]"
	decide(t, []testCase{
		{name: "volume of an image", object: vmi(one(*image()))},
		{name: "volume of a claim", object: vmi(one(*claim("data")))},
		{name: "volume without a source", object: vmi(one(v1.VolumeSource{})), fields: []string{first}, says: "must have exactly one source type set"},
		{name: "volume with two sources", object: vmi(one(v1.VolumeSource{ContainerDisk: image().ContainerDisk, EmptyDisk: &v1.EmptyDiskSource{Capacity: *quantity("1Gi")}})),
			fields: []string{first}, says: "must have exactly one source type set"},
		{name: "two volumes of a name", object: vmi(one(*image()), volume("data", *image())), fields: []string{"spec.volumes[1].name"}, says: "must not have the same Name."},
		{name: "claim without a name", object: vmi(one(*claim(""))), says: "claimName keeps the VM from starting"},
		{name: "image without a name", object: vmi(one(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}})), says: "image keeps the VM from starting"},
		{name: "image with a path", object: vmi(one(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i", Path: "/disk/root.img"}}))},
		{name: "image with the root as path", object: vmi(one(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i", Path: "/"}})),
			fields: []string{first + ".containerDisk.path"}, says: "must not point to root"},
		{name: "image with a relative path", object: vmi(one(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i", Path: "a/b"}})),
			fields: []string{first + ".containerDisk.path"},
			says:   "must be an absolute path to a file without relative components"},
		{name: "image with a path that climbs", object: vmi(one(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "i", Path: "/a/../b"}})),
			fields: []string{first + ".containerDisk.path"}},
		{name: "empty disk of no size", object: vmi(one(v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}})), says: "capacity keeps the VM from starting"},
		{name: "data volume without a name", object: vmi(one(v1.VolumeSource{DataVolume: &v1.DataVolumeSource{}})), fields: []string{first + ".dataVolume.name"},
			says: "DataVolume 'name' must be set"},
		{name: "ConfigMap", object: vmi(one(v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "c"}}}))},
		{name: "ConfigMap without a name", object: vmi(one(v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{}})), fields: []string{first + ".configMap.name"},
			says: "is a required field"},
		{name: "Secret without a name", object: vmi(one(v1.VolumeSource{Secret: &v1.SecretVolumeSource{}})), fields: []string{first + ".secret.secretName"},
			says: "is a required field"},
		{name: "service account without a name", object: vmi(one(v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{}})),
			fields: []string{first + ".serviceAccount.serviceAccountName"}, says: "is a required field"},
		{name: "two service accounts", object: vmi(one(v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "a"}}),
			volume("b", v1.VolumeSource{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: "b"}})),
			fields: []string{"spec.volumes"},
			says:   "must have max one serviceAccount volume set"},
		{name: "sysprep of nothing", object: vmi(one(v1.VolumeSource{Sysprep: &v1.SysprepSource{}})), says: "sysprep keeps the VM from starting"},
		{name: "host disk", config: hosts, object: vmi(hostDisk(v1.HostDisk{Path: "/data/d.img", Type: v1.HostDiskExistsOrCreate, Capacity: *quantity("1Gi")}))},
		{name: "host disk without the gate", object: vmi(hostDisk(v1.HostDisk{Path: "/data/d.img", Type: v1.HostDiskExists})), fields: []string{first + ".hostDisk"},
			says: "HostDisk feature gate is not enabled"},
		{name: "host disk without a path", config: hosts, object: vmi(hostDisk(v1.HostDisk{Type: v1.HostDiskExists})), fields: []string{first + ".hostDisk.path"},
			says: "is required for hostDisk volume"},
		{name: "host disk of an unknown type", config: hosts, object: vmi(hostDisk(v1.HostDisk{Path: "/d", Type: "Device"})), fields: []string{first + ".hostDisk.type"},
			says: "has invalid value 'Device', allowed are 'Disk' or 'DiskOrCreate'"},
		{name: "host disk that exists with a size", config: hosts, object: vmi(hostDisk(v1.HostDisk{Path: "/d", Type: v1.HostDiskExists, Capacity: *quantity("1Gi")})),
			fields: []string{first + ".hostDisk.capacity"}, says: "is allowed to pass only with"},
		{name: "downward metrics", config: gates("DownwardMetrics"), object: vmi(one(*metrics), with(func(s *spec) {
			s.Domain.Devices.Disks[0].Disk = &v1.DiskTarget{Bus: "virtio"}
		}))},
		{name: "downward metrics without the gate", object: vmi(disk(v1.Disk{Name: "m", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "virtio"}}}, metrics)),
			fields: []string{first + ".downwardMetrics"}, says: "DownwardMetrics feature gate is not enabled"},
		{name: "downward metrics on a cdrom", config: gates("DownwardMetrics"),
			object: vmi(disk(v1.Disk{Name: "m", DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}}, metrics)),
			fields: []string{at("disks[0].disk")},
			says:   "DownwardMetrics volume must be mapped to a disk"},
		{name: "downward metrics on sata", config: gates("DownwardMetrics"),
			object: vmi(disk(v1.Disk{Name: "m", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "sata"}}}, metrics)),
			fields: []string{at("disks[0].disk.bus")},
			says:   "DownwardMetrics volume must be mapped to virtio bus"},
		{name: "memory dump", object: vmi(dump("a"))},
		{name: "two memory dumps", object: vmi(dump("a"), dump("b")), fields: []string{"spec.volumes"}, says: "must have max one memory dump volume set"},
		{name: "shared claim", object: vmi(volume("data", *claim("data")), devices(func(d *v1.Devices) {
			d.Filesystems = []v1.Filesystem{{Name: "data", Virtiofs: &v1.FilesystemVirtiofs{}}}
		})), fields: []string{at("filesystems[0]")},
			says: "virtiofs is not allowed: virtiofs feature gate is not enabled for PVC"},
		{name: "shared claim with the gate", config: gates("EnableVirtioFsStorageVolumes"), object: vmi(volume("data", *claim("data")), devices(func(d *v1.Devices) {
			d.Filesystems = []v1.Filesystem{{Name: "data", Virtiofs: &v1.FilesystemVirtiofs{}}}
		}))},
		{name: "utility volumes of a new instance", object: vmi(with(func(s *spec) {
			s.UtilityVolumes = []v1.UtilityVolume{{Name: "u",
				PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "u"}}}
		})), fields: []string{"spec.utilityVolumes"},
			says: "cannot create VMI with utility volumes in spec, utility volumes can only be added via hotplug"},
		{name: "257 volumes", object: vmi(with(func(s *spec) { s.Volumes = make([]v1.Volume, 257) })), fields: []string{"spec.volumes"}},
	})
}

func TestCloudInit(t *testing.T) {
	secret := &corev1.LocalObjectReference{Name: "s"}
	long := strings.Repeat("a", 2049)
	const source = "spec.volumes[0].cloudInitNoCloud"
	decide(t, []testCase{
		{name: "user data", object: vmi(noCloud(v1.CloudInitNoCloudSource{UserData: "#cloud-config"}))},
		{name: "user data of a secret", object: vmi(noCloud(v1.CloudInitNoCloudSource{UserDataSecretRef: secret}))},
		{name: "network data only", object: vmi(noCloud(v1.CloudInitNoCloudSource{NetworkData: "version: 2"}))},
		{name: "user data in base 64", object: vmi(noCloud(v1.CloudInitNoCloudSource{UserDataBase64: "I2Nsb3VkLWNvbmZpZw=="}))},
		{name: "user data not in base 64", object: vmi(noCloud(v1.CloudInitNoCloudSource{UserDataBase64: "#cloud-config"})),
			fields: []string{source + ".userDataBase64"}, says: "is not a valid base64 value."},
		{name: "network data not in base 64", object: vmi(noCloud(v1.CloudInitNoCloudSource{NetworkDataBase64: "#"})), fields: []string{source + ".networkDataBase64"}},
		{name: "longest user data", object: vmi(noCloud(v1.CloudInitNoCloudSource{UserData: long[1:]}))},
		{name: "user data that is too long", object: vmi(noCloud(v1.CloudInitNoCloudSource{UserData: long})), fields: []string{source},
			says: "userdata exceeds 2048 byte limit. Should use UserDataSecretRef"},
		{name: "network data that is too long", object: vmi(noCloud(v1.CloudInitNoCloudSource{NetworkData: long})), fields: []string{source},
			says: "networkdata exceeds 2048 byte limit. Should use NetworkDataSecretRef"},
		{name: "user data twice", object: vmi(noCloud(v1.CloudInitNoCloudSource{UserData: "a", UserDataSecretRef: secret})), fields: []string{source},
			says: "must have only one userdata source set."},
		{name: "network data twice", object: vmi(noCloud(v1.CloudInitNoCloudSource{NetworkData: "a", NetworkDataSecretRef: secret})), fields: []string{source},
			says: "must have only one networkdata source set."},
		{name: "no data", object: vmi(noCloud(v1.CloudInitNoCloudSource{})), fields: []string{source},
			says: "must have at least one userdatasource or one networkdatasource set."},
		{name: "config drive", object: vmi(configDrive(v1.CloudInitConfigDriveSource{UserData: "#cloud-config"}))},
		{name: "config drive without data", object: vmi(configDrive(v1.CloudInitConfigDriveSource{})), fields: []string{"spec.volumes[0].cloudInitConfigDrive"}},
		{name: "config drive that is too long", object: vmi(configDrive(v1.CloudInitConfigDriveSource{UserData: long})), fields: []string{"spec.volumes[0].cloudInitConfigDrive"}},
		{name: "two cloud-init volumes", object: vmi(noCloud(v1.CloudInitNoCloudSource{UserData: "a"}), configDrive(v1.CloudInitConfigDriveSource{UserData: "a"})),
			fields: []string{"spec.volumes"}, says: "must have max one"},
	})
}
