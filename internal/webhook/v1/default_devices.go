// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/hotplug"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/diskbus"
	"github.com/vireo-project/vireo/internal/quantity"
)

// defaultSpinlockRetries is KubeVirt's default, and the minimum of Hyper-V's specification.
const defaultSpinlockRetries uint32 = 4096

// parseOrZero parses a quantity. It returns zero for an invalid one, which validation reports.
func parseOrZero(s string) *resource.Quantity {
	q, err := quantity.Parse(s)
	if err != nil {
		return &resource.Quantity{}
	}
	return &q
}

func defaultDisks(spec *v1.VirtualMachineInstanceSpec, plugs bool) {
	instancetype.AddImplicitDisks(spec)
	disks := spec.Domain.Devices.Disks
	if plugs {
		// No schema and no rule has limited the lists yet: a search for each volume would take minutes.
		byName := make(map[string]*v1.Disk, len(disks))
		for i := range disks {
			if byName[disks[i].Name] == nil {
				byName[disks[i].Name] = &disks[i]
			}
		}
		for i := range spec.Volumes {
			// So that it can be unplugged, and has the bus that it gets when it is plugged.
			if disk := byName[spec.Volumes[i].Name]; disk != nil && spec.Volumes[i].IsHotpluggable() {
				hotplug.SetDefaults(disk)
			}
		}
	}
	for i := range disks {
		defaultDisk(&disks[i], spec.Architecture)
	}
}

func defaultDisk(disk *v1.Disk, architecture string) {
	if disk.Disk == nil && disk.LUN == nil && disk.CDRom == nil {
		disk.Disk = &v1.DiskTarget{}
	}
	if disk.Disk != nil && disk.Disk.Bus == "" {
		disk.Disk.Bus = diskbus.Default(diskbus.Disk, architecture)
	}
	if disk.LUN != nil && disk.LUN.Bus == "" {
		// KubeVirt uses the default bus of disks, which libvirt rejects: a LUN needs a SCSI bus.
		disk.LUN.Bus = diskbus.Default(diskbus.LUN, architecture)
	}
	if cdrom := disk.CDRom; cdrom != nil {
		if cdrom.Bus == "" {
			cdrom.Bus = diskbus.Default(diskbus.CDRom, architecture)
		}
		if cdrom.ReadOnly == nil {
			cdrom.ReadOnly = ptr.To(true)
		}
		if cdrom.Tray == "" {
			cdrom.Tray = v1.TrayStateClosed
		}
	}
}

func defaultDevices(spec *v1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	for i := range devices.Interfaces {
		if devices.Interfaces[i].Model == "" && devices.Interfaces[i].SRIOV == nil {
			devices.Interfaces[i].Model = v1.VirtIO
		}
	}
	for i := range devices.Inputs {
		if devices.Inputs[i].Bus == "" {
			devices.Inputs[i].Bus = v1.InputBusUSB
		}
		if devices.Inputs[i].Type == "" {
			devices.Inputs[i].Type = v1.InputTypeTablet
		}
	}
	if watchdog := devices.Watchdog; watchdog != nil {
		if watchdog.I6300ESB == nil && watchdog.Diag288 == nil {
			if spec.Architecture == clusterconfig.ArchS390X {
				watchdog.Diag288 = &v1.Diag288Watchdog{}
			} else {
				watchdog.I6300ESB = &v1.I6300ESBWatchdog{}
			}
		}
		if watchdog.I6300ESB != nil && watchdog.I6300ESB.Action == "" {
			watchdog.I6300ESB.Action = v1.WatchdogActionReset
		}
		if watchdog.Diag288 != nil && watchdog.Diag288.Action == "" {
			watchdog.Diag288.Action = v1.WatchdogActionReset
		}
	}
	if sound := devices.Sound; sound != nil && sound.Model == "" {
		sound.Model = "ich9"
	}
}

// defaultFlag sets a flag to true if it is nil.
func defaultFlag(flag **bool) {
	if *flag == nil {
		*flag = ptr.To(true)
	}
}

func defaultState(state *v1.FeatureState) {
	if state != nil {
		defaultFlag(&state.Enabled)
	}
}

func defaultFeatures(spec *v1.VirtualMachineInstanceSpec) {
	if spec.Domain.Features == nil {
		spec.Domain.Features = &v1.Features{}
	}
	f := spec.Domain.Features
	if spec.Architecture == clusterconfig.ArchS390X && f.ACPI.Enabled == nil {
		f.ACPI.Enabled = ptr.To(false) // the machine has no ACPI
	}
	defaultFlag(&f.ACPI.Enabled)
	defaultState(f.SMM)
	defaultState(f.Pvspinlock)
	if f.APIC != nil {
		defaultFlag(&f.APIC.Enabled)
	}
	if f.HypervPassthrough != nil {
		defaultFlag(&f.HypervPassthrough.Enabled)
	}
	if f.Hyperv != nil {
		defaultHyperv(f.Hyperv)
		if f.Hyperv.EVMCS != nil && *f.Hyperv.EVMCS.Enabled {
			requireCPUFeature(spec.Domain.CPU, nestedVirtualization)
		}
	}
}

// nestedVirtualization is the CPU feature with which a guest can itself run guests. EVMCS needs it.
const nestedVirtualization = "vmx"

// requireCPUFeature sets the policy of a feature to "require". As in KubeVirt, it replaces any other policy, with which
// the guest would not start.
func requireCPUFeature(cpu *v1.CPU, name string) {
	for i := range cpu.Features {
		if cpu.Features[i].Name == name {
			cpu.Features[i].Policy = "require"
			return
		}
	}
	cpu.Features = append(cpu.Features, v1.CPUFeature{Name: name, Policy: "require"})
}

func defaultHyperv(h *v1.FeatureHyperv) {
	for _, state := range []*v1.FeatureState{
		h.Relaxed, h.VAPIC, h.VPIndex, h.Runtime, h.SyNIC, h.Reset, h.Frequencies, h.Reenlightenment, h.IPI, h.EVMCS,
	} {
		defaultState(state)
	}
	if h.Spinlocks != nil {
		defaultFlag(&h.Spinlocks.Enabled)
		if *h.Spinlocks.Enabled && h.Spinlocks.Retries == nil {
			h.Spinlocks.Retries = ptr.To(defaultSpinlockRetries)
		}
	}
	if h.SyNICTimer != nil {
		defaultFlag(&h.SyNICTimer.Enabled)
		defaultState(h.SyNICTimer.Direct)
	}
	if h.VendorID != nil {
		defaultFlag(&h.VendorID.Enabled)
	}
	if h.TLBFlush != nil {
		defaultFlag(&h.TLBFlush.Enabled)
		defaultState(h.TLBFlush.Direct)
		defaultState(h.TLBFlush.Extended)
	}
	defaultHypervDependencies(h)
}

// defaultHypervDependencies enables the enlightenments on which others depend. It does not change those that the spec
// disables.
func defaultHypervDependencies(h *v1.FeatureHyperv) {
	isEnabled := func(state *v1.FeatureState) bool { return state != nil && *state.Enabled }
	enableUnset := func(state **v1.FeatureState) {
		if *state == nil {
			*state = &v1.FeatureState{Enabled: ptr.To(true)}
		}
	}
	if h.SyNICTimer != nil && *h.SyNICTimer.Enabled {
		enableUnset(&h.VPIndex)
		enableUnset(&h.SyNIC)
	}
	if isEnabled(h.SyNIC) || isEnabled(h.IPI) || h.TLBFlush != nil && *h.TLBFlush.Enabled {
		enableUnset(&h.VPIndex)
	}
	if isEnabled(h.EVMCS) {
		enableUnset(&h.VAPIC)
	}
}

func defaultTimers(spec *v1.VirtualMachineInstanceSpec) {
	if spec.Domain.Clock == nil || spec.Domain.Clock.Timer == nil {
		return
	}
	t := spec.Domain.Clock.Timer
	if t.HPET != nil {
		defaultFlag(&t.HPET.Enabled)
	}
	if t.KVM != nil {
		defaultFlag(&t.KVM.Enabled)
	}
	if t.PIT != nil {
		defaultFlag(&t.PIT.Enabled)
	}
	if t.RTC != nil {
		defaultFlag(&t.RTC.Enabled)
	}
	if t.Hyperv != nil {
		defaultFlag(&t.Hyperv.Enabled)
	}
}
