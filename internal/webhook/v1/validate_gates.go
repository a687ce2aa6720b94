// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"runtime"
	"slices"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// Feature gates of KubeVirt that only admission checks. Package clusterconfig defines the others.
const (
	gateDecentralized   = "DecentralizedLiveMigration"
	gateDownwardMetrics = "DownwardMetrics"
	gateHostDevices     = "HostDevices"
	gateHotplugVolumes  = "DeclarativeHotplugVolumes"
	gateIgnition        = "ExperimentalIgnitionSupport"
	gateMultiArch       = "MultiArchitecture"
	gateNetworkDRA      = "NetworkDevicesWithDRA"
	gatePasst           = "PasstBinding"
	gateRebootPolicy    = "RebootPolicy"
	gateReservedMemory  = "ReservedOverheadMemlock"
	gateSEV             = "WorkloadEncryptionSEV"
	gateSidecar         = "Sidecar"
	gateSnapshot        = "Snapshot"
	gateTDX             = "WorkloadEncryptionTDX"
	gateVirtioFSStorage = "EnableVirtioFsStorageVolumes"
	gateVSOCK           = "VSOCK"
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

// architecture returns the architecture of a guest: the spec's, or else the cluster's default.
func architecture(spec *v1.VirtualMachineInstanceSpec, config clusterconfig.Config) string {
	if spec.Architecture != "" {
		return spec.Architecture
	}
	return config.DefaultArchitecture
}

// videoTypes are the graphics cards of QEMU by architecture. Source: kubevirt/kubevirt pkg/virt-api/webhooks.
var videoTypes = map[string][]string{
	clusterconfig.ArchAMD64: {"vga", "cirrus", "virtio", "ramfb", "bochs"},
	clusterconfig.ArchARM64: {"virtio", "ramfb"},
	clusterconfig.ArchS390X: {"virtio"},
}

func checkArchitecture(c *check) {
	arch := c.spec.Architecture
	if arch == "" || arch == c.config.DefaultArchitecture || arch == runtime.GOARCH || c.config.IsEnabled(gateMultiArch) {
		return
	}
	c.forbidden(c.at("architecture"),
		"multi-architecture feature gate is not enabled in kubevirt-config, invalid entry %s. "+
			"Leave it out, or use %s.", c.at("architecture"), runtime.GOARCH)
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
