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

func osOf(machine string, change func(*libvirtxml.DomainOS)) *libvirtxml.DomainOS {
	want := &libvirtxml.DomainOS{
		Type:   &libvirtxml.DomainOSType{Arch: "x86_64", Machine: machine, Type: "hvm"},
		SMBios: &libvirtxml.DomainSMBios{Mode: "sysinfo"},
	}
	if change != nil {
		change(want)
	}
	return want
}

func efi(secure string) func(*libvirtxml.DomainOS) {
	return func(os *libvirtxml.DomainOS) {
		os.Firmware = "efi"
		os.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{Features: []libvirtxml.DomainOSFirmwareFeature{
			{Name: "secure-boot", Enabled: secure}, {Name: "enrolled-keys", Enabled: secure},
		}}
		os.NVRam = &libvirtxml.DomainNVRam{NVRam: "/var/run/libvirt/nvram.fd"}
	}
}

func TestOS(t *testing.T) {
	bootloader := func(loader v1.Bootloader) func(*v1.DomainSpec) {
		return func(d *v1.DomainSpec) { d.Firmware = &v1.Firmware{Bootloader: &loader} }
	}
	for name, tc := range map[string]struct {
		change func(*v1.DomainSpec)
		want   *libvirtxml.DomainOS
	}{
		"default": {func(*v1.DomainSpec) {}, osOf("q35", nil)},
		"machine of another QEMU": {
			func(d *v1.DomainSpec) { d.Machine = &v1.Machine{Type: "pc-q35-rhel9.2.0"} }, osOf("pc-q35-7.2", nil),
		},
		"machine":     {func(d *v1.DomainSpec) { d.Machine = &v1.Machine{Type: "pc-q35-9.2"} }, osOf("pc-q35-9.2", nil)},
		"no firmware": {func(d *v1.DomainSpec) { d.Firmware = nil }, osOf("q35", nil)},
		"bios":        {bootloader(v1.Bootloader{BIOS: &v1.BIOS{}}), osOf("q35", nil)},
		"bios on the serial port": {bootloader(v1.Bootloader{BIOS: &v1.BIOS{UseSerial: ptr.To(true)}}),
			osOf("q35", func(os *libvirtxml.DomainOS) { os.BIOS = &libvirtxml.DomainBIOS{UseSerial: "yes"} })},
		"efi has Secure Boot":     {bootloader(v1.Bootloader{EFI: &v1.EFI{}}), osOf("q35", efi("yes"))},
		"efi without Secure Boot": {bootloader(v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false)}}), osOf("q35", efi("no"))},
		"efi whose variables last": {bootloader(v1.Bootloader{EFI: &v1.EFI{Persistent: ptr.To(true)}}),
			osOf("q35", func(os *libvirtxml.DomainOS) {
				efi("yes")(os)
				os.NVRam.NVRam = "/var/run/kubevirt-private/vm-state/nvram/testvmi_VARS.fd"
			})},
		"efi whose variables do not last": {bootloader(v1.Bootloader{EFI: &v1.EFI{Persistent: ptr.To(false)}}), osOf("q35", efi("yes"))},
	} {
		t.Run(name, func(t *testing.T) {
			expectEqual(t, makeGuest().domainSpec(tc.change).build(t).OS, tc.want)
		})
	}
}

func TestKernelBoot(t *testing.T) {
	g := makeGuest().domainSpec(func(d *v1.DomainSpec) {
		d.Firmware.KernelBoot = &v1.KernelBoot{
			KernelArgs: "console=ttyS0",
			Container:  &v1.KernelBootContainer{Image: "kernel:1", KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd"},
		}
	})
	g.expectNotPrepared(t, "spec.domain.firmware.kernelBoot.container")
	g.on(func(f *domain.Facts) { f.KernelBoot = &domain.KernelBootFact{Kernel: "/k/boot/vmlinuz"} }).
		expectNotPrepared(t, "spec.domain.firmware.kernelBoot.container.initrdPath")
	g.on(func(f *domain.Facts) { f.KernelBoot.Initrd = "/k/boot/initrd" })
	expectEqual(t, g.build(t).OS, osOf("q35", func(os *libvirtxml.DomainOS) {
		os.Kernel, os.Initrd, os.Cmdline = "/k/boot/vmlinuz", "/k/boot/initrd", "console=ttyS0"
	}))
	g.domainSpec(func(d *v1.DomainSpec) { d.Firmware.KernelBoot.Container = nil }).
		expectRefused(t, "spec.domain.firmware.kernelBoot.container", "image")
}

func TestOSRefused(t *testing.T) {
	loader := func(loader v1.Bootloader) *guest {
		return makeGuest().domainSpec(func(d *v1.DomainSpec) { d.Firmware.Bootloader = &loader })
	}
	loader(v1.Bootloader{BIOS: &v1.BIOS{}, EFI: &v1.EFI{}}).expectRefused(t, "spec.domain.firmware.bootloader",
		"leave one")
	loader(v1.Bootloader{BIOS: &v1.BIOS{UseSerial: ptr.To(true)}}).
		devices(func(d *v1.Devices) { d.AutoattachSerialConsole = ptr.To(false) }).
		expectRefused(t, "spec.domain.firmware.bootloader.bios.useSerial", "autoattachSerialConsole")
	makeGuest().with(func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "arm64" }).
		expectRefused(t, "spec.architecture", "amd64")
	makeGuest().with(func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "amd64" }).
		on(func(f *domain.Facts) { f.Arch = "arm64" }).
		expectRefused(t, "spec.architecture", "the node is arm64")
}
