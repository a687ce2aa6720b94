// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveupdate

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/test/builder"
)

// TestNeedRestart checks how changed fields are named.
func TestNeedRestart(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1.VirtualMachineInstanceSpec)
		want   string
	}{
		"nothing": {func(*v1.VirtualMachineInstanceSpec) {}, ""},
		"fields of a struct that was missing": {
			func(s *v1.VirtualMachineInstanceSpec) {
				s.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false)}}}
			}, "domain.firmware.bootloader.efi.secureBoot",
		},
		"an empty struct": {func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.TPM = &v1.TPMDevice{} }, "domain.devices.tpm"},
		"an inlined struct": {
			func(s *v1.VirtualMachineInstanceSpec) {
				s.Domain.Devices.Interfaces[0].InterfaceBindingMethod = v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}
			}, "domain.devices.interfaces[default].bridge domain.devices.interfaces[default].masquerade",
		},
		"a quantity": {
			func(s *v1.VirtualMachineInstanceSpec) {
				s.Volumes[0].EmptyDisk.Capacity = resource.MustParse(
					"9Gi")
			}, "volumes[data].emptyDisk.capacity",
		},
		"elements added and removed": {
			func(s *v1.VirtualMachineInstanceSpec) {
				s.Networks = []v1.Network{{Name: "blue"}}
			}, "networks[default] networks[blue]",
		},
		"an element added in front": {
			func(s *v1.VirtualMachineInstanceSpec) {
				s.Domain.Devices.Disks = append([]v1.Disk{{Name: "first"}}, s.Domain.Devices.Disks...)
			}, "domain.devices.disks[first]",
		},
		"another order": {
			func(s *v1.VirtualMachineInstanceSpec) { slices.Reverse(s.Domain.Devices.Disks) }, "domain.devices.disks",
		},
		"elements without names": {
			func(s *v1.VirtualMachineInstanceSpec) {
				s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1}}
			}, "topologySpreadConstraints",
		},
		"two elements of one name": {
			func(s *v1.VirtualMachineInstanceSpec) { s.Networks = append(s.Networks, s.Networks...) }, "networks",
		},
		"a name with special characters": {
			func(s *v1.VirtualMachineInstanceSpec) {
				s.Domain.Devices.Inputs = []v1.Input{{Name: "a[0], b\n" + strings.Repeat("c", 99)}}
			}, "domain.devices.inputs[a?0?? b?" + strings.Repeat("c", 55) + "…]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := builder.MakeVMI("vm").Masquerade().With(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Volumes = []v1.Volume{{Name: "data",
					VolumeSource: v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Gi")}}}}
				vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "data"}, {Name: "more"}}
			}).Obj()
			now := vmi.Spec.DeepCopy()
			tc.change(now)
			changed := NeedRestart(&vmi.Spec, now, vmi, true)
			if got := strings.Join(changed, " "); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			if back := FieldsIn(Message(changed)); !slices.Equal(back, changed) {
				t.Errorf("the message names %q, want %q", back, changed)
			}
		})
	}
}

// TestMessage checks that a message names only some of many fields.
func TestMessage(t *testing.T) {
	if got := Message(nil); got != "" || FieldsIn(got) != nil {
		t.Errorf("got %q for no field", got)
	}
	changed := slices.Repeat([]string{"hostname"}, 10)
	message := Message(changed)
	if want := specNeedsRestart + ": " + strings.Repeat("hostname, ", 8) + "and 2 more"; message != want {
		t.Errorf("got %q, want %q", message, want)
	}
	if got := FieldsIn(message); !slices.Equal(got, changed[:8]) {
		t.Errorf("the message names %q", got)
	}
	if got := FieldsIn("Reduction of CPU socket count requires a restart"); got != nil {
		t.Errorf("another message names %q", got)
	}
}

// TestClaimFields checks how changed claims are named.
func TestClaimFields(t *testing.T) {
	volumes := []v1.Volume{
		{Name: "a", VolumeSource: v1.VolumeSource{DataVolume: &v1.DataVolumeSource{}}},
		{Name: "b", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}, {Name: "c"},
	}
	message := Naming("restart it", ClaimFields(volumes, func(name string) bool { return name != "c" }))
	if want := "restart it: volumes[a].dataVolume.name, volumes[b].persistentVolumeClaim.claimName"; message != want {
		t.Errorf("got %q, want %q", message, want)
	}
	if got := FieldsIn(message); len(got) != 2 || EntryOf(got[0]).Effect != Migration ||
		EntryOf(got[1]).Effect != Migration {
		t.Errorf("the message names %q", got)
	}
}

// The table says on which buses disks can be plugged.
func TestNoteNamesTheBuses(t *testing.T) {
	note := EntryOf("volumes").Note
	for _, name := range diskbus.Names(diskbus.Disk) {
		if diskbus.Of(name).Plugs(diskbus.Disk) && !strings.Contains(note, string(name)) {
			t.Errorf("%q, volumesPlug in internal/decide/liveupdate/table.go, does not name the bus %s", note, name)
		}
	}
}

// TestEntryOf checks that the entry with the longest path applies.
func TestEntryOf(t *testing.T) {
	for path, want := range map[string]string{
		"domain.cpu":                             "domain.cpu",
		"domain.cpu.cores":                       "domain.cpu",
		"domain.cpu.sockets":                     "domain.cpu.sockets",
		"domain.devices.interfaces[blue].state":  "domain.devices.interfaces[].state",
		"domain.devices.interfaces[blue].states": "domain.devices.interfaces",
		"domain.devices.disks[data].tags":        "domain.devices",
		"volumes[data].dataVolume.name":          "volumes[].dataVolume.name",
		"volumes[data]":                          "volumes",
	} {
		if e := EntryOf(path); e == nil || e.Path != want {
			t.Errorf("%s: got %+v, want %s", path, e, want)
		}
	}
	if e := EntryOf("domain"); e != nil {
		t.Errorf("got %+v", e)
	}
}
