// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package specsupport

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
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
			s.Domain.Devices.Disks = []v1.Disk{{Name: "d", DiskDevice: v1.DiskDevice{LUN: &v1.LunTarget{Bus: "sata", Reservation: true}}}}
		}}, []string{"spec.domain.devices.disks[0].lun.bus"}},
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
