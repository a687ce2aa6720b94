// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/machinetype"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// Emulator is QEMU in the launcher image.
	Emulator = "/usr/bin/qemu-system-x86_64"
	// NVRAM is the file with UEFI variables that are not persistent.
	NVRAM = launcherpod.RuntimeDir + "/nvram.fd"

	archAMD64      = "amd64"
	defaultMachine = "q35"
)

// configureOS sets the machine type, the firmware and the kernel.
func configureOS(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	if err := checkArchitecture(vmi, facts); err != nil {
		return err
	}
	machine := defaultMachine
	if m := vmi.Spec.Domain.Machine; m != nil && m.Type != "" {
		machine = machinetype.ForStart(m.Type)
	}
	domain.OS = &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: "x86_64", Machine: machine, Type: "hvm"}}
	if err := configureBootloader(vmi, domain.OS); err != nil {
		return err
	}
	return configureKernelBoot(vmi, facts, domain.OS)
}

func checkArchitecture(vmi *v1.VirtualMachineInstance, facts Facts) error {
	node, guest := facts.Arch, vmi.Spec.Architecture
	if node == "" {
		node = archAMD64
	}
	if guest == "" {
		guest = node
	}
	path := specPath.Child("architecture")
	if guest != archAMD64 {
		return field.NotSupported(path, guest, []string{archAMD64})
	}
	if guest != node {
		return field.Invalid(path, guest, "the node is "+node+": the guest's and the node's architecture must be the same")
	}
	return nil
}

func bootloader(vmi *v1.VirtualMachineInstance) v1.Bootloader {
	if firmware := vmi.Spec.Domain.Firmware; firmware != nil && firmware.Bootloader != nil {
		return *firmware.Bootloader
	}
	return v1.Bootloader{}
}

// usesSecureBoot reports whether the guest has Secure Boot, which as in KubeVirt is the default with EFI.
func usesSecureBoot(vmi *v1.VirtualMachineInstance) bool {
	efi := bootloader(vmi).EFI
	return efi != nil && enabled(efi.SecureBoot)
}

func configureBootloader(vmi *v1.VirtualMachineInstance, os *libvirtxml.DomainOS) error {
	loader := bootloader(vmi)
	path := firmwarePath.Child("bootloader")
	if loader.EFI != nil && loader.BIOS != nil {
		return field.Invalid(path, "bios, efi", "a guest has one firmware: leave one of them out")
	}
	if loader.BIOS != nil && isTrue(loader.BIOS.UseSerial) {
		if !enabled(vmi.Spec.Domain.Devices.AutoattachSerialConsole) {
			return field.Invalid(path.Child("bios", "useSerial"), true,
				"needs a serial console: leave spec.domain.devices.autoattachSerialConsole out")
		}
		os.BIOS = &libvirtxml.DomainBIOS{UseSerial: "yes"}
	}
	if loader.EFI == nil {
		return nil
	}
	// libvirt selects the firmware image by the firmware descriptors in the launcher image.
	os.Firmware = "efi"
	secure := usesSecureBoot(vmi)
	os.FirmwareInfo = &libvirtxml.DomainOSFirmwareInfo{Features: []libvirtxml.DomainOSFirmwareFeature{
		{Name: "secure-boot", Enabled: yesNo(secure)},
		{Name: "enrolled-keys", Enabled: yesNo(secure)},
	}}
	os.NVRam = &libvirtxml.DomainNVRam{NVRam: NVRAM}
	if vmi.Spec.HasPersistentEFI() {
		os.NVRam.NVRam = launcherpod.NVRAMStateFile(vmi.Name)
	}
	return nil
}

func configureKernelBoot(vmi *v1.VirtualMachineInstance, facts Facts, os *libvirtxml.DomainOS) error {
	firmware := vmi.Spec.Domain.Firmware
	if firmware == nil || firmware.KernelBoot == nil {
		return nil
	}
	boot, path := firmware.KernelBoot, firmwarePath.Child("kernelBoot")
	if boot.Container == nil {
		if boot.KernelArgs != "" {
			return field.Required(path.Child("container"), "kernelArgs need a kernel: name the image that contains it")
		}
		return nil
	}
	if facts.KernelBoot == nil {
		return fmt.Errorf("%s: the kernel's image is %w", path.Child("container"), ErrNotPrepared)
	}
	if boot.Container.KernelPath != "" && facts.KernelBoot.Kernel == "" {
		return fmt.Errorf("%s: %s is %w", path.Child("container", "kernelPath"), boot.Container.KernelPath, ErrNotPrepared)
	}
	if boot.Container.InitrdPath != "" && facts.KernelBoot.Initrd == "" {
		return fmt.Errorf("%s: %s is %w", path.Child("container", "initrdPath"), boot.Container.InitrdPath, ErrNotPrepared)
	}
	if boot.KernelArgs != "" && facts.KernelBoot.Kernel == "" {
		return field.Required(path.Child("container", "kernelPath"), "kernelArgs need a kernel")
	}
	os.Kernel, os.Initrd, os.Cmdline = facts.KernelBoot.Kernel, facts.KernelBoot.Initrd, boot.KernelArgs
	return nil
}
