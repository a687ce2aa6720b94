// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"path"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func checkMachine(c *check) {
	machine := c.spec.Domain.Machine
	if machine == nil || machine.Type == "" {
		return
	}
	p := c.at("domain", "machine", "type")
	allowed := c.config.EmulatedMachines(architecture(c.spec, c.config))
	for _, pattern := range allowed {
		// kubeVirtWarnings reports malformed patterns.
		if match, err := path.Match(pattern, machine.Type); err == nil && match {
			return
		}
	}
	c.invalid(p, machine.Type, "%s is not supported: %s (allowed values: %v)", p, machine.Type, allowed)
}

func checkFirmware(c *check) {
	fw := c.spec.Domain.Firmware
	if fw == nil {
		return
	}
	p := c.at("domain", "firmware")
	if fw.ACPI != nil {
		c.acpi(p.Child("acpi"), fw.ACPI)
	}
	if fw.Bootloader == nil {
		return
	}
	if fw.Bootloader.EFI != nil && fw.Bootloader.BIOS != nil {
		c.invalid(p.Child("bootloader"), "bios, efi",
			"%s has both EFI and BIOS configured, but they are mutually exclusive.", p.Child("bootloader"))
	}
	if efi := fw.Bootloader.EFI; efi != nil && enabled(efi.SecureBoot) && !c.smm() {
		c.invalid(p.Child("bootloader", "efi", "secureBoot"), true,
			"%s has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled. "+
				"Set features.smm.enabled to true, or efi.secureBoot to false.", c.at("domain"))
	}
}

// acpi rejects references to volumes that do not exist or have no Secret.
func (c *check) acpi(p *field.Path, acpi *v1.ACPI) {
	if acpi.SlicNameRef == "" && acpi.MsdmNameRef == "" {
		c.invalid(p, "", "ACPI was set but no SLIC nor MSDM volume reference was set. Set slicNameRef or msdmNameRef, or leave %s out.", p)
	}
	volumes := c.volumesByName()
	checkReference := func(at *field.Path, name string) {
		switch volume := volumes[name]; {
		case name == "":
		case volume == nil:
			c.invalid(at, name, "%s does not have a matching Volume. Add a volume of that name with a secret.", p)
		case volume.Secret == nil:
			c.invalid(at, name, "%s refers to Volume of unsupported type. Use a volume with a secret.", p)
		}
	}
	checkReference(p.Child("slicNameRef"), acpi.SlicNameRef)
	checkReference(p.Child("msdmNameRef"), acpi.MsdmNameRef)
}

// smm reports whether the spec enables system management mode, which is off by default.
func (c *check) smm() bool {
	f := c.spec.Domain.Features
	return f != nil && f.SMM != nil && enabled(f.SMM.Enabled)
}

// enabled returns the value of a flag whose default is true.
func enabled(flag *bool) bool { return flag == nil || *flag }

func checkKernelBoot(c *check) {
	if c.spec.Domain.Firmware == nil || c.spec.Domain.Firmware.KernelBoot == nil {
		return
	}
	boot := c.spec.Domain.Firmware.KernelBoot
	p := c.at("domain", "firmware", "kernelBoot")
	if boot.Container == nil {
		if boot.KernelArgs != "" {
			c.invalid(p.Child("kernelArgs"), boot.KernelArgs, "kernel arguments cannot be provided without an external kernel")
		}
		return
	}
	container := p.Child("container")
	if boot.Container.Image == "" {
		c.required(container.Child("image"), "%s must be defined with an image", container)
	}
	if boot.Container.KernelPath == "" && boot.Container.InitrdPath == "" {
		c.required(container, "%s must be defined with at least one of the following: kernelPath, initrdPath", container)
	}
	c.imagePath(container.Child("kernelPath"), boot.Container.KernelPath)
	c.imagePath(container.Child("initrdPath"), boot.Container.InitrdPath)
}

// imagePath rejects a path in a container image that is not the absolute path of a file.
func (c *check) imagePath(p *field.Path, file string) {
	switch {
	case file == "":
	case file == "/":
		c.invalid(p, file, "%s must not point to root", p)
	case filepath.Join("/", file) != strings.TrimSuffix(file, "/"):
		c.invalid(p, file, "%s must be an absolute path to a file without relative components", p)
	}
}
