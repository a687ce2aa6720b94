// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const testUUID = "5d307ca9-b3ef-428c-8861-06e72d69f223"

// guest builds a VMI and the facts that an agent would prepare for it.
type guest struct {
	vmi   *v1.VirtualMachineInstance
	facts domain.Facts
}

// makeGuest returns a guest with nothing but memory, on a node without KVM.
func makeGuest() *guest {
	memory := resource.MustParse("64Mi")
	return &guest{
		vmi: &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "testvmi", UID: "7d9bdd2c-9e57-4c8f-a1d5-5a07b8f0a0b1"},
			Spec: v1.VirtualMachineInstanceSpec{Domain: v1.DomainSpec{
				Memory:   &v1.Memory{Guest: &memory},
				Firmware: &v1.Firmware{UUID: testUUID},
			}},
		},
		facts: domain.Facts{
			Emulation:             true,
			Arch:                  "amd64",
			Disks:                 map[string]domain.DiskFact{},
			Interfaces:            map[string]domain.InterfaceFact{},
			SMBIOS:                domain.SMBIOSFact{Manufacturer: "Vireo", Product: "None", Family: "Vireo"},
			MemBalloonStatsPeriod: 10,
		},
	}
}

// with changes the VMI's spec.
func (g *guest) with(change func(*v1.VirtualMachineInstanceSpec)) *guest {
	change(&g.vmi.Spec)
	return g
}

// devices changes the VMI's devices.
func (g *guest) devices(change func(*v1.Devices)) *guest {
	change(&g.vmi.Spec.Domain.Devices)
	return g
}

// domainSpec changes the VMI's domain.
func (g *guest) domainSpec(change func(*v1.DomainSpec)) *guest {
	change(&g.vmi.Spec.Domain)
	return g
}

// on changes the facts.
func (g *guest) on(change func(*domain.Facts)) *guest {
	change(&g.facts)
	return g
}

func (g *guest) kvm() *guest {
	return g.on(func(f *domain.Facts) { f.Emulation, f.VhostNet = false, true })
}

func (g *guest) annotate(key, value string) *guest {
	metav1.SetMetaDataAnnotation(&g.vmi.ObjectMeta, key, value)
	return g
}

// disk adds a disk, its volume and its fact.
func (g *guest) disk(disk v1.Disk, volume v1.VolumeSource, fact domain.DiskFact) *guest {
	g.vmi.Spec.Domain.Devices.Disks = append(g.vmi.Spec.Domain.Devices.Disks, disk)
	g.vmi.Spec.Volumes = append(g.vmi.Spec.Volumes, v1.Volume{Name: disk.Name, VolumeSource: volume})
	g.facts.Disks[disk.Name] = fact
	return g
}

// containerDisk adds a disk with an overlay on an image of a containerDisk.
func (g *guest) containerDisk(name string, bus v1.DiskBus) *guest {
	return g.disk(diskOn(name, bus), v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "guest:1"}},
		overlayFact(name))
}

// emptyDisk adds a raw file as a disk, and lets change adapt it.
func (g *guest) emptyDisk(disk v1.Disk, change ...func(*domain.DiskFact)) *guest {
	fact := rawFact(disk.Name)
	for _, c := range change {
		c(&fact)
	}
	return g.disk(disk, v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Mi")}}, fact)
}

// cloudInit adds a cloud-init medium.
func (g *guest) cloudInit(disk v1.Disk) *guest {
	return g.disk(disk, v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: "#cloud-config"}},
		rawFact(disk.Name))
}

// fileClaim adds a disk on a claim with volumeMode Filesystem, and lets change adapt it.
func (g *guest) fileClaim(disk v1.Disk, change func(*domain.DiskFact)) *guest {
	source := &v1.PersistentVolumeClaimVolumeSource{}
	source.ClaimName = "claim"
	fact := rawFact(disk.Name)
	change(&fact)
	return g.disk(disk, v1.VolumeSource{PersistentVolumeClaim: source}, fact)
}

// blockClaim adds a disk on a claim with volumeMode Block.
func (g *guest) blockClaim(disk v1.Disk) *guest {
	source := &v1.PersistentVolumeClaimVolumeSource{}
	source.ClaimName = "claim"
	return g.disk(disk, v1.VolumeSource{PersistentVolumeClaim: source}, domain.DiskFact{
		Path: launcherpod.BlockDevice(disk.Name), Block: true, Format: "raw", DirectIO: true, CapacityBytes: 1 << 20,
	})
}

// ephemeralBlock adds a disk with an overlay on a claim with volumeMode Block.
func (g *guest) ephemeralBlock(disk v1.Disk) *guest {
	fact := overlayFact(disk.Name)
	fact.BackingPath, fact.BackingBlock = launcherpod.BlockDevice(disk.Name), true
	return g.disk(disk, v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"},
	}}, fact)
}

// secret adds a medium with the files of a Secret.
func (g *guest) secret(disk v1.Disk) *guest {
	fact := rawFact(disk.Name)
	fact.Path = launcherpod.EphemeralDisksDir + "/" + disk.Name + ".iso"
	return g.disk(disk, v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}, fact)
}

// nic adds an interface with a tap.
func (g *guest) nic(iface v1.Interface, tap, mac string) *guest {
	g.vmi.Spec.Domain.Devices.Interfaces = append(g.vmi.Spec.Domain.Devices.Interfaces, iface)
	g.vmi.Spec.Networks = append(g.vmi.Spec.Networks, v1.Network{
		Name: iface.Name, NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}},
	})
	g.facts.Interfaces[iface.Name] = domain.InterfaceFact{Tap: tap, MAC: mac, MTU: 1450}
	return g
}

func (g *guest) masquerade() *guest {
	return g.nic(masqueraded("default", ""), "tap0", "02:00:00:00:00:01")
}

func masqueraded(name, model string) v1.Interface {
	return v1.Interface{
		Name: name, Model: model, InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
	}
}

func diskOn(name string, bus v1.DiskBus) v1.Disk {
	return v1.Disk{Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: bus}}}
}

func cdromOn(name string, bus v1.DiskBus) v1.Disk {
	return v1.Disk{Name: name, DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{Bus: bus}}}
}

func lunOn(name string, bus v1.DiskBus) v1.Disk {
	return v1.Disk{Name: name, DiskDevice: v1.DiskDevice{LUN: &v1.LunTarget{Bus: bus}}}
}

func overlayFact(name string) domain.DiskFact {
	return domain.DiskFact{
		Path:          launcherpod.EphemeralDisksDir + "/" + name + ".qcow2",
		Format:        "qcow2",
		BackingPath:   launcherpod.ContainerDiskDir(name) + "/disk/disk.img",
		BackingFormat: "raw",
		DirectIO:      true,
		CapacityBytes: 1 << 20,
	}
}

func rawFact(name string) domain.DiskFact {
	return domain.DiskFact{
		Path: launcherpod.EphemeralDisksDir + "/" + name + ".img", Format: "raw", CapacityBytes: 1 << 20, DirectIO: true,
	}
}

// build builds the guest's domain, and fails the test if it is refused.
func (g *guest) build(t *testing.T) *libvirtxml.Domain {
	t.Helper()
	built, err := domain.Build(g.vmi, g.facts)
	if err != nil {
		t.Fatalf("Build: %v", err)
	}
	return built
}

// expectRefused fails unless Build refuses the guest because of the field, with a text that contains hint.
func (g *guest) expectRefused(t *testing.T, path, hint string) {
	t.Helper()
	built, err := domain.Build(g.vmi, g.facts)
	if err == nil {
		t.Fatalf("Build accepted the guest; want an error about %s", path)
	}
	if built != nil {
		t.Error("Build returned a domain together with an error")
	}
	var refused *field.Error
	if !errors.As(err, &refused) {
		t.Fatalf("error is no *field.Error: %v", err)
	}
	if refused.Field != path {
		t.Errorf("error is about %s, want %s: %v", refused.Field, path, err)
	}
	if !strings.Contains(err.Error(), hint) {
		t.Errorf("error does not say %q: %v", hint, err)
	}
	if errors.Is(err, domain.ErrNotPrepared) {
		t.Errorf("an error of the VMI is blamed on the agent: %v", err)
	}
}

// expectNotPrepared fails unless Build returns ErrNotPrepared for path.
func (g *guest) expectNotPrepared(t *testing.T, path string) {
	t.Helper()
	_, err := domain.Build(g.vmi, g.facts)
	if !errors.Is(err, domain.ErrNotPrepared) {
		t.Fatalf("error is not ErrNotPrepared: %v", err)
	}
	if !strings.Contains(err.Error(), path) {
		t.Errorf("error does not name %s: %v", path, err)
	}
}

// expectEqual compares whole elements.
func expectEqual[T any](t *testing.T, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}
