// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"path"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
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

// checkLaunchSecurity applies to amd64, the only architecture with several kinds of encryption.
func checkLaunchSecurity(c *check) {
	security := c.spec.Domain.LaunchSecurity
	if security == nil || architecture(c.spec, c.config) != "amd64" {
		return
	}
	p := c.at("domain", "launchSecurity")
	var kinds, gates []string
	for _, kind := range []struct {
		set        bool
		name, gate string
	}{{security.SEV != nil, "SEV", gateSEV}, {security.SNP != nil, "SNP", gateSEV},
		{security.TDX != nil, "TDX", gateTDX}} {
		if kind.set {
			kinds, gates = append(kinds, kind.name), append(gates, kind.gate)
		}
	}
	if len(kinds) != 1 {
		c.forbidden(p, "One and only one launchSecurity type can be set")
		return
	}
	if !c.config.IsEnabled(gates[0]) {
		c.forbidden(p, "%s feature gate is not enabled in kubevirt-config", gates[0])
		return
	}
	c.encryptedFirmware(kinds[0])
	if security.SEV != nil && security.SEV.Attestation != nil &&
		(c.spec.StartStrategy == nil || *c.spec.StartStrategy != v1.StartStrategyPaused) {
		c.invalid(p.Child("sev", "attestation"), "{}", "SEV attestation requires VMI StartStrategy '%s'",
			v1.StartStrategyPaused)
	}
	for i := range c.spec.Domain.Devices.Interfaces {
		if iface := &c.spec.Domain.Devices.Interfaces[i]; iface.BootOrder != nil {
			c.invalid(c.devices("interfaces").Index(i).Child("bootOrder"), *iface.BootOrder,
				"%s does not work with bootable NICs: %s", kinds[0], iface.Name)
		}
	}
}

// encryptedFirmware rejects firmware settings with which an encrypted guest cannot start.
func (c *check) encryptedFirmware(kind string) {
	p, fw := c.at("domain", "launchSecurity"), c.spec.Domain.Firmware
	if kind == "TDX" && c.smm() {
		c.invalid(p, kind, "TDX does not work along with SMM")
	}
	if fw == nil || fw.Bootloader == nil || fw.Bootloader.EFI == nil {
		c.invalid(p, kind, "%s requires OVMF (UEFI). Set domain.firmware.bootloader.efi.", kind)
		return
	}
	efi := fw.Bootloader.EFI
	if kind != "TDX" && enabled(efi.SecureBoot) {
		c.invalid(p, kind, "%s does not work along with SecureBoot. Set efi.secureBoot to false.", kind)
	}
	if kind != "SEV" && efi.Persistent != nil && *efi.Persistent {
		c.invalid(p, kind, "%s does not work along with Persistent EFI variables", kind)
	}
}

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

// checkHyperv rejects enlightenments whose dependencies the spec disables. It applies only to a VMI, whose defaults
// have enabled the dependencies that the spec does not mention.
func checkHyperv(c *check) {
	f := c.spec.Domain.Features
	if f == nil || f.Hyperv == nil {
		return
	}
	p, h := c.at("domain", "features", "hyperv"), f.Hyperv
	if f.HypervPassthrough != nil {
		c.invalid(p, "{}", "Cannot explicitly set hyperV features if HypervPassthrough is being used. "+
			"Please use either HyperV or HypervPassthrough.")
	}
	isEnabled := func(state *v1.FeatureState) bool { return state != nil && enabled(state.Enabled) }
	require := func(feature string, enabled bool, dependency string, dependencyEnabled bool) {
		if enabled && !dependencyEnabled {
			c.invalid(p.Child(feature), true, "'%s' requires '%s', which was disabled.", p.Child(feature), p.Child(dependency))
		}
	}
	timer := h.SyNICTimer != nil && enabled(h.SyNICTimer.Enabled)
	require("evmcs", isEnabled(h.EVMCS), "vapic", isEnabled(h.VAPIC))
	require("ipi", isEnabled(h.IPI), "vpindex", isEnabled(h.VPIndex))
	require("tlbflush", h.TLBFlush != nil && enabled(h.TLBFlush.Enabled), "vpindex", isEnabled(h.VPIndex))
	require("synictimer", timer, "synic", isEnabled(h.SyNIC))
	require("synic", isEnabled(h.SyNIC), "vpindex", isEnabled(h.VPIndex))
}

var (
	inputBuses  = []v1.InputBus{"", v1.InputBusUSB, v1.InputBusVirtio}
	inputTypes  = []v1.InputType{"", v1.InputTypeTablet, v1.InputTypeKeyboard}
	panicModels = []v1.PanicDeviceModel{v1.Hyperv, v1.Isa, v1.Pvpanic}
	soundModels = []string{"", "ich9", "ac97"}
	ioThreads   = []v1.IOThreadsPolicy{
		v1.IOThreadsPolicyShared, v1.IOThreadsPolicyAuto, v1.IOThreadsPolicySupplementalPool,
	}
)

func checkInputs(c *check) {
	for i, input := range c.spec.Domain.Devices.Inputs {
		at := c.devices("inputs").Index(i)
		if !slices.Contains(inputBuses, input.Bus) {
			c.invalid(at.Child("bus"), input.Bus, "Input device can have only virtio or usb bus.")
		}
		if !slices.Contains(inputTypes, input.Type) {
			c.invalid(at.Child("type"), input.Type, "Input device can have only tablet or keyboard type.")
		}
	}
}

func checkSound(c *check) {
	sound := c.spec.Domain.Devices.Sound
	if sound == nil {
		return
	}
	p := c.devices("sound")
	if !slices.Contains(soundModels, sound.Model) {
		c.invalid(p.Child("model"), sound.Model, "Sound device type is not supported. Options: 'ich9' or 'ac97'")
	}
	if sound.Name == "" {
		c.required(p.Child("name"), "Sound device requires a name field.")
	}
}

func checkVideo(c *check) {
	devices := &c.spec.Domain.Devices
	if devices.Video != nil && !enabled(devices.AutoattachGraphicsDevice) {
		c.invalid(c.devices("video"), devices.Video.Type,
			"Video configuration is not allowed when autoattachGraphicsDevice is set to false")
	}
}

func checkPanicDevices(c *check) {
	devices := c.spec.Domain.Devices.PanicDevices
	if len(devices) == 0 {
		return
	}
	p := c.devices("panicDevices")
	if arch := architecture(c.spec, c.config); arch == clusterconfig.ArchS390X {
		c.invalid(p, len(devices), "custom panic devices are not supported on %s architecture", arch)
	}
	for i := range devices {
		if model := devices[i].Model; model != nil && !slices.Contains(panicModels, *model) {
			c.invalid(p.Index(i).Child("model"), *model, "invalid PanicDeviceModel(%s). Use one of %v.", *model, panicModels)
		}
	}
}

func checkIOThreads(c *check) {
	policy := c.spec.Domain.IOThreadsPolicy
	if policy == nil {
		return
	}
	p := c.at("domain", "ioThreadsPolicy")
	if !slices.Contains(ioThreads, *policy) {
		c.invalid(p, *policy, "Invalid IOThreadsPolicy (%s). Use one of %v.", *policy, ioThreads)
	}
	pool := c.spec.Domain.IOThreads
	if *policy == v1.IOThreadsPolicySupplementalPool &&
		(pool == nil || pool.SupplementalPoolThreadCount == nil || *pool.SupplementalPoolThreadCount < 1) {
		c.required(c.at("domain", "ioThreads", "supplementalPoolThreadCount"),
			"the number of iothreads needs to be set and positive for the dedicated policy")
	}
}
