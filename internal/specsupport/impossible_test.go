// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/test/builder"
)

type option = func(*v1.VirtualMachineInstanceSpec)

func volume(source v1.VolumeSource) option {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Volumes = append(s.Volumes, v1.Volume{Name: "v", VolumeSource: source})
	}
}

func nic(change func(*v1.Interface)) option {
	return func(s *v1.VirtualMachineInstanceSpec) {
		iface := v1.Interface{Name: "n"}
		change(&iface)
		s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, iface)
	}
}

func disk(serial string, device v1.DiskDevice) option {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = []v1.Disk{{Name: "d", Serial: serial, DiskDevice: device}}
	}
}

func firmware(f v1.Firmware) option {
	return func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Firmware = &f }
}

func dog(d v1.WatchdogDevice) option {
	return func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.Watchdog = &v1.Watchdog{WatchdogDevice: d} }
}

func pod(network v1.PodNetwork) option {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Networks = []v1.Network{{Name: "n", NetworkSource: v1.NetworkSource{Pod: &network}}}
	}
}

func TestImpossibleInVMI(t *testing.T) {
	claim := func(name string) *v1.PersistentVolumeClaimVolumeSource {
		return &v1.PersistentVolumeClaimVolumeSource{
			PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
	}
	const serial = "1234567890123456789012345678901234567"
	reference := &corev1.LocalObjectReference{Name: "r"}
	index := func(i int) option { return nic(func(n *v1.Interface) { n.ACPIIndex = i }) }
	for _, tc := range []struct {
		name    string
		options []option
		fields  []string
	}{
		{"nothing", nil, nil},
		{"claim", []option{volume(v1.VolumeSource{PersistentVolumeClaim: claim("c")})}, nil},
		{"claim without a name", []option{volume(v1.VolumeSource{PersistentVolumeClaim: claim("")})},
			[]string{"spec.volumes[0].persistentVolumeClaim.claimName"}},
		{"overlay without a claim", []option{volume(v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}})},
			[]string{"spec.volumes[0].ephemeral.persistentVolumeClaim"}},
		{"overlay of a claim without a name", []option{volume(v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}})},
			[]string{"spec.volumes[0].ephemeral.persistentVolumeClaim.claimName"}},
		{"container disk without an image", []option{volume(v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}})},
			[]string{"spec.volumes[0].containerDisk.image"}},
		{"empty disk", []option{volume(v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Gi")}})}, nil},
		{"empty disk of no size", []option{volume(v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{}})},
			[]string{"spec.volumes[0].emptyDisk.capacity"}},
		{"sysprep", []option{volume(v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: reference}})}, nil},
		{"sysprep of nothing", []option{volume(v1.VolumeSource{Sysprep: &v1.SysprepSource{}})}, []string{"spec.volumes[0].sysprep"}},
		{"sysprep of both", []option{volume(v1.VolumeSource{Sysprep: &v1.SysprepSource{Secret: reference, ConfigMap: reference}})},
			[]string{"spec.volumes[0].sysprep"}},
		{"reservation on sata", []option{func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Disks = []v1.Disk{{Name: "d",
				DiskDevice: v1.DiskDevice{LUN: &v1.LunTarget{Bus: "sata", Reservation: true}}}}
		}}, []string{"spec.domain.devices.disks[0].lun.bus"}},
		{"LUN on virtio", []option{disk("", v1.DiskDevice{LUN: &v1.LunTarget{Bus: "virtio"}})}, []string{"spec.domain.devices.disks[0].lun.bus"}},
		{"LUN", []option{disk("s", v1.DiskDevice{LUN: &v1.LunTarget{}})}, nil},
		{"longest serial", []option{disk(serial[:36], v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "scsi"}})}, nil},
		{"serial too long for scsi", []option{disk(serial, v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "scsi"}})},
			[]string{"spec.domain.devices.disks[0].serial"}},
		{"serial too long for usb", []option{disk(serial[:21], v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: "usb"}})},
			[]string{"spec.domain.devices.disks[0].serial"}},
		{"longest serial for usb", []option{disk(serial[:20], v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "usb"}})}, nil},
		{"serial that virtio cuts", []option{disk(serial, v1.DiskDevice{Disk: &v1.DiskTarget{Bus: "virtio"}})}, nil},
		{"MAC address", []option{nic(func(n *v1.Interface) { n.MacAddress = "02:00:5e:00:00:01" })}, nil},
		{"MAC address of a group", []option{nic(func(n *v1.Interface) { n.MacAddress = "01:00:5e:00:00:01" })},
			[]string{"spec.domain.devices.interfaces[0].macAddress"}},
		{"UUID", []option{firmware(v1.Firmware{UUID: "5D307ca9-b3ef-428c-8861-06e72d69f223"})}, nil},
		{"UUID without hyphens", []option{firmware(v1.Firmware{UUID: "5d307ca9b3ef428c886106e72d69f223"})}, nil},
		{"name for a UUID", []option{firmware(v1.Firmware{UUID: "my-guest"})}, []string{"spec.domain.firmware.uuid"}},
		{"UUID in braces", []option{firmware(v1.Firmware{UUID: "{5d307ca9-b3ef-428c-8861-06e72d69f223}"})}, []string{"spec.domain.firmware.uuid"}},
		{"UEFI without ACPI", []option{firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}}}), func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: new(bool)}}
		}}, []string{"spec.domain.firmware.bootloader.efi"}},
		{"BIOS to no console", []option{firmware(v1.Firmware{Bootloader: &v1.Bootloader{BIOS: &v1.BIOS{UseSerial: ptr.To(true)}}}),
			func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.AutoattachSerialConsole = new(bool) }},
			[]string{"spec.domain.firmware.bootloader.bios.useSerial"}},
		{"two bindings", []option{nic(func(n *v1.Interface) {
			n.Bridge, n.Masquerade = &v1.InterfaceBridge{}, &v1.InterfaceMasquerade{}
		})}, []string{"spec.domain.devices.interfaces[0]"}},
		{"last port", []option{nic(func(n *v1.Interface) { n.Ports = []v1.Port{{Port: 65535}} })}, nil},
		{"port after the last", []option{nic(func(n *v1.Interface) { n.Ports = []v1.Port{{Port: 65536}} })},
			[]string{"spec.domain.devices.interfaces[0].ports[0].port"}},
		{"indexes", []option{index(1), index(2), index(0), index(0)}, nil},
		{"index too large", []option{index(16384)}, []string{"spec.domain.devices.interfaces[0].acpiIndex"}},
		{"index taken", []option{index(7), index(7)}, []string{"spec.domain.devices.interfaces[1].acpiIndex"}},
		{"networks", []option{pod(v1.PodNetwork{VMNetworkCIDR: "10.0.2.0/24", VMIPv6NetworkCIDR: "fd10:0:2::/120"})}, nil},
		{"leading zeros", []option{pod(v1.PodNetwork{VMNetworkCIDR: "10.10.010.0/24"})}, nil},
		{"a network without room", []option{pod(v1.PodNetwork{VMNetworkCIDR: "10.0.2.0/31"})}, []string{"spec.networks[0].pod.vmNetworkCIDR"}},
		{"networks mixed up", []option{pod(v1.PodNetwork{VMNetworkCIDR: "fd10:0:2::/120", VMIPv6NetworkCIDR: "10.0.2.0/24"})},
			[]string{"spec.networks[0].pod.vmNetworkCIDR", "spec.networks[0].pod.vmIPv6NetworkCIDR"}},
		{"watchdog", []option{dog(v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{Action: "reset"}})}, nil},
		{"watchdogs that bark", []option{dog(v1.WatchdogDevice{
			I6300ESB: &v1.I6300ESBWatchdog{Action: "bark"}, Diag288: &v1.Diag288Watchdog{Action: "bark"}})},
			[]string{"spec.domain.devices.watchdog.i6300esb.action", "spec.domain.devices.watchdog.diag288.action"}},
		{"arguments to no kernel", []option{func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{KernelArgs: "quiet",
				Container: &v1.KernelBootContainer{Image: "i", InitrdPath: "/initrd"}}}
		}}, []string{"spec.domain.firmware.kernelBoot.kernelArgs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			spec := &v1.VirtualMachineInstanceSpec{}
			for _, o := range tc.options {
				o(spec)
			}
			var fields []string
			for _, err := range ImpossibleInVMI(field.NewPath("spec"), spec) {
				fields = append(fields, err.Field)
			}
			if !slices.Equal(fields, tc.fields) {
				t.Errorf("got %v, want %v", fields, tc.fields)
			}
		})
	}
}

func TestDisksFollowTheTableOfBuses(t *testing.T) {
	for _, name := range diskbus.Names("") {
		bus := diskbus.Of(name)
		for serial, fails := range map[int]bool{bus.MaxSerial: false, bus.MaxSerial + 1: bus.MaxSerial > 0} {
			long := builder.MakeDisk("a", diskbus.Disk, name)
			long.Serial = strings.Repeat("1", serial)
			spec := &v1.VirtualMachineInstanceSpec{}
			spec.Domain.Devices.Disks = []v1.Disk{long}
			if errs := ImpossibleInVMI(field.NewPath("spec"), spec); (len(errs) > 0) != fails {
				t.Errorf("%s with a serial number of %d characters: %v", name, serial, errs)
			}
		}
		spec := &v1.VirtualMachineInstanceSpec{}
		spec.Domain.Devices.Disks = []v1.Disk{builder.MakeDisk("a", diskbus.LUN, name)}
		if errs := ImpossibleInVMI(field.NewPath("spec"), spec); (len(errs) == 0) != bus.Connects(diskbus.LUN) {
			t.Errorf("a LUN on %s: %v", name, errs)
		}
	}
}
