// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	v1 "github.com/vireo-project/vireo/api/v1"
)

// checkGates rejects devices and volumes whose feature gate is not enabled, with KubeVirt's messages. If the gate is
// enabled, they are admitted, and package specsupport warns if they are not implemented.
func checkGates(c *check) {
	devices := &c.spec.Domain.Devices
	if len(devices.HostDevices) > 0 && !c.config.IsEnabled(gateHostDevices) {
		c.forbidden(c.devices("hostDevices"), "Host Devices feature gate is not enabled in kubevirt-config")
	}
	if devices.DownwardMetrics != nil && !c.config.IsEnabled(gateDownwardMetrics) {
		c.forbidden(c.devices("downwardMetrics"),
			"downwardMetrics virtio serial is not allowed: DownwardMetrics feature gate is not enabled")
	}
	if vsock := devices.AutoattachVSOCK; vsock != nil && *vsock && !c.config.IsEnabled(gateVSOCK) {
		c.forbidden(c.devices("autoattachVSOCK"), "%s feature gate is not enabled in kubevirt-config", gateVSOCK)
	}
	volumes := c.volumesByName()
	for i := range devices.Filesystems {
		volume := volumes[devices.Filesystems[i].Name]
		if volume == nil || volume.PersistentVolumeClaim == nil && volume.DataVolume == nil ||
			c.config.IsEnabled(gateVirtioFSStorage) {
			continue
		}
		c.forbidden(c.devices("filesystems").Index(i),
			"virtiofs is not allowed: virtiofs feature gate is not enabled for PVC")
	}
	displays := 0
	for i := range devices.GPUs {
		if firmwareDisplay(devices.GPUs[i].VirtualGPUOptions) {
			displays++
		}
	}
	if displays > 1 {
		c.invalid(c.devices("gpus"), displays, "configuring multiple displays with ramfb is not valid")
	}
}

// checkDomainGates rejects fields of the domain whose feature gate is not enabled.
func checkDomainGates(c *check) {
	if c.spec.Domain.RebootPolicy != nil && !c.config.IsEnabled(gateRebootPolicy) {
		c.forbidden(c.at("domain", "rebootPolicy"), "%s feature gate is not enabled in kubevirt-config", gateRebootPolicy)
	}
	if memory := c.spec.Domain.Memory; memory != nil && memory.ReservedOverhead != nil &&
		!c.config.IsEnabled(gateReservedMemory) {
		c.forbidden(c.at("domain", "memory", "reservedOverhead"), "%s feature gate is not enabled in kubevirt-config",
			gateReservedMemory)
	}
}

// firmwareDisplay reports whether a GPU has a display before the guest loads its driver. A guest can have one such
// display.
func firmwareDisplay(options *v1.VGPUOptions) bool {
	if options == nil || options.Display == nil || !enabled(options.Display.Enabled) {
		return false
	}
	ramFB := options.Display.RamFB
	return ramFB == nil || ramFB.Enabled != nil && *ramFB.Enabled
}

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
