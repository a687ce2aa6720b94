// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// videoTypes are the graphics cards of QEMU by architecture. Source: kubevirt/kubevirt pkg/virt-api/webhooks.
var videoTypes = map[string][]string{
	clusterconfig.ArchAMD64: {"vga", "cirrus", "virtio", "ramfb", "bochs"},
	clusterconfig.ArchARM64: {"virtio", "ramfb"},
	clusterconfig.ArchS390X: {"virtio"},
}

// checkArchitectureOfInstance applies only to a VMI, because a template need not set the architecture.
func checkArchitectureOfInstance(c *check) {
	arch := architecture(c.spec, c.config)
	switch arch {
	case clusterconfig.ArchAMD64:
		c.onlyWatchdog("amd64 only supports I6300ESB watchdog device", true, false)
	case clusterconfig.ArchS390X:
		c.onlyWatchdog("s390x only supports Diag288 watchdog device", false, true)
	case clusterconfig.ArchARM64:
		c.onlyWatchdog("Arm64 not support Watchdog device", false, false)
		c.arm64()
	default:
		c.invalid(c.at("architecture"), arch, "unsupported architecture: %s. Use amd64, arm64 or s390x.", arch)
		return
	}
	if video := c.spec.Domain.Devices.Video; video != nil && video.Type != "" &&
		!slices.Contains(videoTypes[arch], video.Type) {
		c.invalid(c.devices("video").Child("type"), video.Type,
			"video model '%s' is not supported on %s architecture. Use one of %v.", video.Type, arch, videoTypes[arch])
	}
}

// onlyWatchdog rejects watchdogs that the architecture does not have.
func (c *check) onlyWatchdog(message string, i6300esb, diag288 bool) {
	watchdog := c.spec.Domain.Devices.Watchdog
	if watchdog != nil && ((watchdog.I6300ESB != nil) != i6300esb || (watchdog.Diag288 != nil) != diag288 ||
		!i6300esb && !diag288) {
		c.invalid(c.devices("watchdog"), watchdog.Name, "%s", message)
	}
}

func (c *check) arm64() {
	if cpu := c.spec.Domain.CPU; cpu != nil && cpu.Model == v1.CPUModeHostModel {
		c.invalid(c.at("domain", "cpu", "model"), cpu.Model, "Arm64 not support CPU host-model. Use host-passthrough.")
	}
	if c.spec.Domain.Devices.Sound != nil {
		c.invalid(c.devices("sound"), c.spec.Domain.Devices.Sound.Name, "Arm64 not support sound device")
	}
	if fw := c.spec.Domain.Firmware; fw != nil && fw.Bootloader != nil {
		p := c.at("domain", "firmware", "bootloader")
		if fw.Bootloader.BIOS != nil {
			c.invalid(p.Child("bios"), "{}", "Arm64 does not support bios boot, please change to uefi boot")
		}
		if fw.Bootloader.EFI != nil && enabled(fw.Bootloader.EFI.SecureBoot) {
			c.invalid(p.Child("efi", "secureBoot"), true,
				"UEFI secure boot is currently not supported on aarch64 Arch. Set it to false.")
		}
	}
	for i := range c.spec.Domain.Devices.Disks {
		kind, bus := diskbus.OfDisk(&c.spec.Domain.Devices.Disks[i])
		if row := diskbus.Of(bus); row.Name != "" && !row.IsOn(clusterconfig.ArchARM64) {
			c.invalid(c.devices("disks").Index(i).Child(kind, "bus"), bus,
				"Arm64 not support this disk bus type, please use virtio or scsi")
		}
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

// checkUtilityVolumes rejects utility volumes in a new VMI. They can only be hotplugged.
func checkUtilityVolumes(c *check) {
	if c.spec.UtilityVolumes != nil {
		c.forbidden(c.at("utilityVolumes"),
			"cannot create VMI with utility volumes in spec, utility volumes can only be added via hotplug")
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

// checkMaxGuest applies to a VM whose memory can be hotplugged.
func checkMaxGuest(c *check) {
	memory := c.spec.Domain.Memory
	if c.config.RolloutStrategy != v1.VMRolloutStrategyLiveUpdate || memory == nil || memory.MaxGuest == nil {
		return
	}
	p := c.at("domain", "memory", "guest")
	_, guest := c.memoryRequest()
	if memory.Guest != nil {
		guest = *memory.Guest
	}
	switch problem := resize.CheckMemory(c.spec, architecture(c.spec, c.config), guest, *memory.MaxGuest); {
	case problem == nil:
	case problem.Missing:
		c.required(p, "%s", problem.Message)
	case problem.OfLimit:
		c.invalid(c.at("domain", "memory", "maxGuest"), memory.MaxGuest.String(), "%s", problem.Message)
	default:
		c.invalid(p, guest.String(), "%s", problem.Message)
	}
}
