// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/diskbus"
)

// preferenceRows are the fields of a preference, in KubeVirt's order. Each applies only to a field that the VM does not
// set.
//
// Not in the table: cpu.preferredCPUTopology, cpu.spreadOptions and preferSpreadSocketToCoreRatio affect cpu.guest of
// the instance type; volumes affects the VM's DataVolumes (StorageClass); requirements are checked (CheckRequirements).
// As in KubeVirt, devices.preferredVirtualGPUOptions is not applied.
var preferenceRows = slices.Concat(
	cpuPreferences, autoattachPreferences, devicePreferences, diskPreferences, nicPreferences, inputPreferences,
	addedDevicePreferences, featurePreferences, firmwarePreferences, machinePreferences, lastPreferences,
)

var cpuPreferences = []row{{
	// KubeVirt crashes if a VM has no domain.cpu.
	path: "cpu.preferredCPUFeatures",
	apply: func(e *expansion) {
		if len(e.preference.cpu.PreferredCPUFeatures) == 0 {
			return
		}
		cpu := need(&e.spec.Domain.CPU)
		named := sets.New[string]()
		for _, feature := range cpu.Features {
			named.Insert(feature.Name)
		}
		for _, feature := range e.preference.cpu.PreferredCPUFeatures {
			if !named.Has(feature.Name) {
				cpu.Features = append(cpu.Features, feature)
				named.Insert(feature.Name)
			}
		}
	},
}}

// autoattachPreferences decide about implicit devices, which are added with the last of them.
var autoattachPreferences = []row{
	devices("preferredAutoattachGraphicsDevice", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		fill(&d.AutoattachGraphicsDevice, p.PreferredAutoattachGraphicsDevice)
	}),
	devices("preferredAutoattachMemBalloon", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		fill(&d.AutoattachMemBalloon, p.PreferredAutoattachMemBalloon)
	}),
	devices("preferredAutoattachSerialConsole", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		fill(&d.AutoattachSerialConsole, p.PreferredAutoattachSerialConsole)
	}),
	{
		path: "devices.preferredAutoattachPodInterface",
		apply: func(e *expansion) {
			fill(&e.spec.Domain.Devices.AutoattachPodInterface, e.preference.devices.PreferredAutoattachPodInterface)
			AddDefaultInterface(e.spec)
		},
	},
	{
		path: "devices.preferredAutoattachInputDevice",
		apply: func(e *expansion) {
			fill(&e.spec.Domain.Devices.AutoattachInputDevice, e.preference.devices.PreferredAutoattachInputDevice)
			addDefaultInput(e.spec)
			AddImplicitDisks(e.spec)
		},
	},
}

var devicePreferences = []row{
	devices("preferredUseVirtioTransitional", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		fill(&d.UseVirtioTransitional, p.PreferredUseVirtioTransitional)
	}),
	devices("preferredBlockMultiQueue", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		fill(&d.BlockMultiQueue, p.PreferredBlockMultiQueue)
	}),
	devices("preferredNetworkInterfaceMultiQueue", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		fill(&d.NetworkInterfaceMultiQueue, p.PreferredNetworkInterfaceMultiQueue)
	}),
	// In KubeVirt, false in the preference replaces true in the VM.
	devices("preferredDisableHotplug", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		fillEmpty(&d.DisableHotplug, ptr.Deref(p.PreferredDisableHotplug, false))
	}),
	devices("preferredSoundModel", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		if d.Sound != nil {
			fillEmpty(&d.Sound.Model, p.PreferredSoundModel)
		}
	}),
	devices("preferredRng", func(p *v1beta1.DevicePreferences, d *v1.Devices) { fill(&d.Rng, p.PreferredRng) }),
	// A VM with tpm.enabled false sets the field, so the preference does not replace it.
	devices("preferredTPM", func(p *v1beta1.DevicePreferences, d *v1.Devices) { fill(&d.TPM, p.PreferredTPM) }),
}

var diskPreferences = []row{
	eachDisk("preferredDiskBus", func(p *v1beta1.DevicePreferences, disk *v1.Disk) {
		if disk.Disk != nil {
			fillEmpty(&disk.Disk.Bus, p.PreferredDiskBus)
		}
	}),
	eachDisk("preferredLunBus", func(p *v1beta1.DevicePreferences, disk *v1.Disk) {
		if disk.LUN != nil {
			fillEmpty(&disk.LUN.Bus, p.PreferredLunBus)
		}
	}),
	eachDisk("preferredCdromBus", func(p *v1beta1.DevicePreferences, disk *v1.Disk) {
		if disk.CDRom != nil {
			fillEmpty(&disk.CDRom.Bus, p.PreferredCdromBus)
		}
	}),
	eachDisk("preferredDiskBlockSize", func(p *v1beta1.DevicePreferences, disk *v1.Disk) {
		if disk.Disk != nil {
			fill(&disk.BlockSize, p.PreferredDiskBlockSize.DeepCopy())
		}
	}),
	eachDisk("preferredDiskCache", func(p *v1beta1.DevicePreferences, disk *v1.Disk) {
		if disk.Disk != nil {
			fillEmpty(&disk.Cache, p.PreferredDiskCache)
		}
	}),
	eachDisk("preferredDiskIO", func(p *v1beta1.DevicePreferences, disk *v1.Disk) {
		if disk.Disk != nil {
			fillEmpty(&disk.IO, p.PreferredDiskIO)
		}
	}),
	// Only the virtio bus has I/O threads.
	eachDisk("preferredDiskDedicatedIoThread", func(p *v1beta1.DevicePreferences, disk *v1.Disk) {
		if dedicated := p.PreferredDiskDedicatedIoThread; dedicated != nil && disk.Disk != nil &&
			diskbus.Of(disk.Disk.Bus).Virtio {
			fill(&disk.DedicatedIOThread, ptr.To(*dedicated))
		}
	}),
}

var nicPreferences = []row{
	devices("preferredInterfaceModel", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		for i := range d.Interfaces {
			fillEmpty(&d.Interfaces[i].Model, p.PreferredInterfaceModel)
		}
	}),
	{
		path: "devices.preferredInterfaceMasquerade",
		apply: func(e *expansion) {
			masquerade := e.preference.devices.PreferredInterfaceMasquerade
			if masquerade == nil {
				return
			}
			onPodNetwork := sets.New[string]()
			for i := range e.spec.Networks {
				if e.spec.Networks[i].Pod != nil {
					onPodNetwork.Insert(e.spec.Networks[i].Name)
				}
			}
			for i := range e.spec.Domain.Devices.Interfaces {
				nic := &e.spec.Domain.Devices.Interfaces[i]
				if nic.Binding == nil && nic.InterfaceBindingMethod == (v1.InterfaceBindingMethod{}) && onPodNetwork.Has(nic.Name) {
					nic.Masquerade = masquerade.DeepCopy()
				}
			}
		},
	},
}

var inputPreferences = []row{
	devices("preferredInputBus", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		for i := range d.Inputs {
			fillEmpty(&d.Inputs[i].Bus, p.PreferredInputBus)
		}
	}),
	devices("preferredInputType", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		for i := range d.Inputs {
			fillEmpty(&d.Inputs[i].Type, p.PreferredInputType)
		}
	}),
}

// addedDevicePreferences add a device to a VM that has none of its kind.
var addedDevicePreferences = []row{
	devices("preferredPanicDeviceModel", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		if p.PreferredPanicDeviceModel == nil {
			return
		}
		if len(d.PanicDevices) == 0 {
			d.PanicDevices = []v1.PanicDevice{{}}
		}
		for i := range d.PanicDevices {
			fill(&d.PanicDevices[i].Model, ptr.To(*p.PreferredPanicDeviceModel))
		}
	}),
	devices("preferredVideoType", func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		if p.PreferredVideoType != nil {
			fillEmpty(&need(&d.Video).Type, *p.PreferredVideoType)
		}
	}),
}

var featurePreferences = []row{
	// In KubeVirt, the preference replaces what the VM sets.
	{
		path: "features.preferredAcpi",
		apply: func(e *expansion) {
			if acpi := e.preference.features.PreferredAcpi; acpi != nil {
				fill(&need(&e.spec.Domain.Features).ACPI.Enabled, acpi.Enabled)
			}
		},
	},
	features("preferredApic", func(p *v1beta1.FeaturePreferences, f *v1.Features) { fill(&f.APIC, p.PreferredApic) }),
	// A VMI cannot have both the node's enlightenments and enlightenments of its own, so the preference does not apply to
	// a VM with the former.
	features("preferredHyperv", func(p *v1beta1.FeaturePreferences, f *v1.Features) {
		if p.PreferredHyperv != nil && f.HypervPassthrough == nil {
			fillHyperv(need(&f.Hyperv), p.PreferredHyperv)
		}
	}),
	features("preferredKvm", func(p *v1beta1.FeaturePreferences, f *v1.Features) { fill(&f.KVM, p.PreferredKvm) }),
	features("preferredPvspinlock",
		func(p *v1beta1.FeaturePreferences, f *v1.Features) { fill(&f.Pvspinlock, p.PreferredPvspinlock) }),
	features("preferredSmm", func(p *v1beta1.FeaturePreferences, f *v1.Features) { fill(&f.SMM, p.PreferredSmm) }),
}

func fillHyperv(own, preferred *v1.FeatureHyperv) {
	fill(&own.Relaxed, preferred.Relaxed)
	fill(&own.VAPIC, preferred.VAPIC)
	fill(&own.Spinlocks, preferred.Spinlocks)
	fill(&own.VPIndex, preferred.VPIndex)
	fill(&own.Runtime, preferred.Runtime)
	fill(&own.SyNIC, preferred.SyNIC)
	fill(&own.SyNICTimer, preferred.SyNICTimer)
	fill(&own.Reset, preferred.Reset)
	fill(&own.VendorID, preferred.VendorID)
	fill(&own.Frequencies, preferred.Frequencies)
	fill(&own.Reenlightenment, preferred.Reenlightenment)
	fill(&own.TLBFlush, preferred.TLBFlush)
	fill(&own.IPI, preferred.IPI)
	fill(&own.EVMCS, preferred.EVMCS)
}

// firmwarePreferences choose a boot loader for a VM that chooses none. KubeVirt adds an empty boot loader to each VM,
// which would prevent arm64's default boot loader.
var firmwarePreferences = []row{
	{
		path: "firmware.preferredUseBios",
		apply: func(e *expansion) {
			if ptr.Deref(e.preference.firmware.PreferredUseBios, false) && e.choosesNoFirmware() {
				e.needBootloader().BIOS = &v1.BIOS{}
			}
		},
	},
	{
		path: "firmware.preferredUseBiosSerial",
		apply: func(e *expansion) {
			if bios := e.bootloader().BIOS; bios != nil {
				fill(&bios.UseSerial, e.preference.firmware.PreferredUseBiosSerial)
			}
		},
	},
	{
		path: "firmware.preferredEfi",
		apply: func(e *expansion) {
			if efi := e.preference.firmware.PreferredEfi; efi != nil && e.choosesNoFirmware() {
				e.needBootloader().EFI, e.preferredEFI = efi, true
			}
		},
	},
	{
		path: "firmware.preferredUseEfi",
		apply: func(e *expansion) {
			if ptr.Deref(e.preference.firmware.DeprecatedPreferredUseEfi, false) && e.choosesNoFirmware() {
				e.needBootloader().EFI = &v1.EFI{}
			}
		},
	},
	{
		path: "firmware.preferredUseSecureBoot",
		apply: func(e *expansion) {
			if efi := e.bootloader().EFI; efi != nil && !e.preferredEFI {
				fill(&efi.SecureBoot, e.preference.firmware.DeprecatedPreferredUseSecureBoot)
			}
		},
	},
}

var machinePreferences = []row{
	{
		path: "machine.preferredMachineType",
		apply: func(e *expansion) {
			if preferred := e.preference.machine.PreferredMachineType; preferred != "" {
				fillEmpty(&need(&e.spec.Domain.Machine).Type, preferred)
			}
		},
	},
	{
		path: "clock.preferredClockOffset",
		apply: func(e *expansion) {
			preferred := e.preference.clock.PreferredClockOffset
			if preferred == nil || *preferred == (v1.ClockOffset{}) {
				return
			}
			if clock := need(&e.spec.Domain.Clock); clock.ClockOffset == (v1.ClockOffset{}) {
				clock.ClockOffset = *preferred
			}
		},
	},
	{
		path: "clock.preferredTimer",
		apply: func(e *expansion) {
			if preferred := e.preference.clock.PreferredTimer; preferred != nil {
				fill(&need(&e.spec.Domain.Clock).Timer, preferred)
			}
		},
	},
}

var lastPreferences = []row{
	{
		path:  "preferredSubdomain",
		apply: func(e *expansion) { fillEmpty(&e.spec.Subdomain, ptr.Deref(e.preference.PreferredSubdomain, "")) },
	},
	{
		path: "preferredTerminationGracePeriodSeconds",
		apply: func(e *expansion) {
			fill(&e.spec.TerminationGracePeriodSeconds, e.preference.PreferredTerminationGracePeriodSeconds)
		},
	},
	{
		path:  "preferredArchitecture",
		apply: func(e *expansion) { fillEmpty(&e.spec.Architecture, ptr.Deref(e.preference.PreferredArchitecture, "")) },
	},
	{
		path:  "annotations",
		apply: func(e *expansion) { e.annotate(e.preference.Annotations) },
	},
	{
		path:  "preferredLaunchSecurity",
		apply: func(e *expansion) { fill(&e.spec.Domain.LaunchSecurity, e.preference.PreferredLaunchSecurity) },
	},
}

// devices returns the row of a field of a preference's devices.
func devices(name string, apply func(*v1beta1.DevicePreferences, *v1.Devices)) row {
	return row{path: "devices." + name, apply: func(e *expansion) { apply(&e.preference.devices, &e.spec.Domain.Devices) }}
}

// eachDisk returns the row of a field of a preference's devices that applies to each disk. A disk without a kind is a
// hard disk.
func eachDisk(name string, apply func(*v1beta1.DevicePreferences, *v1.Disk)) row {
	return devices(name, func(p *v1beta1.DevicePreferences, d *v1.Devices) {
		for i := range d.Disks {
			disk := &d.Disks[i]
			if disk.Disk == nil && disk.LUN == nil && disk.CDRom == nil {
				disk.Disk = &v1.DiskTarget{}
			}
			apply(p, disk)
		}
	})
}

// features returns the row of a field of a preference's features. It adds features to a VM without features only if the
// preference has some.
func features(name string, apply func(*v1beta1.FeaturePreferences, *v1.Features)) row {
	return row{path: "features." + name, apply: func(e *expansion) {
		if e.preference.Features != nil {
			apply(&e.preference.features, need(&e.spec.Domain.Features))
		}
	}}
}

// bootloader returns the boot loader of the template. Only the values that it points to may be changed.
func (e *expansion) bootloader() v1.Bootloader {
	return ptr.Deref(ptr.Deref(e.spec.Domain.Firmware, v1.Firmware{}).Bootloader, v1.Bootloader{})
}

func (e *expansion) choosesNoFirmware() bool { return e.bootloader() == v1.Bootloader{} }

func (e *expansion) needBootloader() *v1.Bootloader {
	return need(&need(&e.spec.Domain.Firmware).Bootloader)
}
