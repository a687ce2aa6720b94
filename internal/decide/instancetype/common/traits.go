// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package common

import (
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// trait is a part of the preferences of several systems.
type trait struct {
	// tag is the trait's keyword for consoles, if it has one.
	tag   string
	apply func(*preferenceSpec)
}

type (
	traits         []trait
	preferenceSpec = v1beta1.VirtualMachinePreferenceSpec
)

// systemAnnotation is an annotation of VMIs with the kind of their operating system.
const systemAnnotation = "vm.kubevirt.io/os"

// Values for Windows. The grace period is long because Windows installs updates when it shuts down.
const (
	windowsGraceSeconds    = 3600
	windowsSpinlockRetries = 8191
)

// dpdkCoresPerSocket is how many cores of a guest with DPDK share a socket.
const dpdkCoresPerSocket = 4

// Kinds of systems.
var (
	// linux has drivers for virtio.
	linux = trait{apply: func(s *preferenceSpec) {
		annotate(s, systemAnnotation, "linux")
		buses(s, v1.DiskBusVirtio, v1.VirtIO)
		need(&s.Devices).PreferredRng = &v1.Rng{}
	}}
	// legacy is a system without drivers for virtio.
	legacy = trait{apply: func(s *preferenceSpec) {
		annotate(s, systemAnnotation, "legacy")
		buses(s, v1.DiskBusSATA, "e1000")
	}}
	// windows is Windows with only its built-in drivers.
	windows = trait{apply: func(s *preferenceSpec) {
		annotate(s, systemAnnotation, "windows")
		buses(s, v1.DiskBusSATA, "e1000e")
		need(&s.Devices).PreferredAutoattachInputDevice = ptr.To(true)
		need(&s.CPU).PreferredCPUTopology = ptr.To(v1beta1.Sockets)
		s.Clock = &v1beta1.ClockPreferences{
			PreferredClockOffset: &v1.ClockOffset{UTC: &v1.ClockOffsetUTC{}},
			PreferredTimer: &v1.Timer{
				HPET:   &v1.HPETTimer{Enabled: ptr.To(false)},
				PIT:    &v1.PITTimer{TickPolicy: v1.PITTickPolicyDelay},
				RTC:    &v1.RTCTimer{TickPolicy: v1.RTCTickPolicyCatchup},
				Hyperv: &v1.HypervTimer{},
			},
		}
		features := need(&s.Features)
		features.PreferredAcpi = &v1.FeatureState{}
		features.PreferredApic = &v1.FeatureAPIC{}
		features.PreferredHyperv = enlightenments()
		s.PreferredTerminationGracePeriodSeconds = ptr.To[int64](windowsGraceSeconds)
	}}
)

// Drivers and devices.
var (
	// windowsVirtio is Windows with the drivers for virtio installed.
	windowsVirtio = trait{apply: func(s *preferenceSpec) {
		buses(s, v1.DiskBusVirtio, v1.VirtIO)
		virtioTablet(s)
		need(&s.Devices).PreferredVideoType = ptr.To(v1.VirtIO)
	}}
	// desktop has a tablet as its pointing device.
	desktop = trait{apply: func(s *preferenceSpec) {
		need(&s.Devices).PreferredAutoattachInputDevice = ptr.To(true)
		virtioTablet(s)
	}}
	// ownIOThread gives each disk a thread of its own.
	ownIOThread = trait{apply: func(s *preferenceSpec) { need(&s.Devices).PreferredDiskDedicatedIoThread = ptr.To(true) }}
	// transitional has drivers only for virtio before version 1.
	transitional = trait{apply: func(s *preferenceSpec) { need(&s.Devices).PreferredUseVirtioTransitional = ptr.To(true) }}
	// noPCIHole64 is for 32-bit systems that do not boot with PCI memory above 4 GiB.
	noPCIHole64 = trait{apply: func(s *preferenceSpec) { annotate(s, v1.DisablePCIHole64, "true") }}
)

// interfaceModel is a network card other than that of the kind of system.
func interfaceModel(model string) trait {
	return trait{apply: func(s *preferenceSpec) { need(&s.Devices).PreferredInterfaceModel = model }}
}

// Firmware.
var (
	// efi boots with UEFI.
	efi = trait{apply: func(s *preferenceSpec) { need(&s.Firmware).PreferredEfi = &v1.EFI{SecureBoot: ptr.To(false)} }}
	// secureBoot boots with UEFI and Secure Boot, which needs SMM.
	secureBoot = trait{apply: func(s *preferenceSpec) {
		need(&s.Firmware).PreferredEfi = &v1.EFI{SecureBoot: ptr.To(true)}
		need(&s.Features).PreferredSmm = &v1.FeatureState{}
	}}
	// tpm has a TPM. Its state and the UEFI variables are kept while the VM is stopped.
	tpm = trait{apply: func(s *preferenceSpec) {
		need(&need(&s.Firmware).PreferredEfi).Persistent = ptr.To(true)
		need(&s.Devices).PreferredTPM = &v1.TPMDevice{Persistent: ptr.To(true)}
	}}
)

// Workloads.
var (
	// dpdk spreads network traffic over all vCPUs.
	dpdk = trait{tag: "dpdk", apply: func(s *preferenceSpec) {
		spread(s).Ratio = ptr.To[uint32](dpdkCoresPerSocket)
		need(&s.Devices).PreferredNetworkInterfaceMultiQueue = ptr.To(true)
	}}
	// realtime has no graphics and no balloon, which would interrupt the vCPUs.
	realtime = trait{tag: "realtime", apply: func(s *preferenceSpec) {
		spread(s)
		devices := need(&s.Devices)
		devices.PreferredAutoattachGraphicsDevice = ptr.To(false)
		devices.PreferredAutoattachMemBalloon = ptr.To(false)
		devices.PreferredAutoattachSerialConsole = ptr.To(true)
		devices.PreferredNetworkInterfaceMultiQueue = ptr.To(true)
	}}
)

// Architectures.
var (
	amd64 = architecture("amd64")
	arm64 = architecture("arm64")
	s390x = architecture("s390x")
)

// architecture is a system that runs on one architecture only.
func architecture(name string) trait {
	return trait{apply: func(s *preferenceSpec) {
		s.PreferredArchitecture = ptr.To(name)
		need(&s.Requirements).Architecture = ptr.To(name)
	}}
}

// enlightenments returns the features of Hyper-V with which Windows is faster.
func enlightenments() *v1.FeatureHyperv {
	return &v1.FeatureHyperv{
		Relaxed:         &v1.FeatureState{},
		VAPIC:           &v1.FeatureState{},
		Spinlocks:       &v1.FeatureSpinlocks{Retries: ptr.To[uint32](windowsSpinlockRetries)},
		VPIndex:         &v1.FeatureState{},
		Runtime:         &v1.FeatureState{},
		SyNIC:           &v1.FeatureState{},
		SyNICTimer:      &v1.SyNICTimer{Direct: &v1.FeatureState{}},
		Reset:           &v1.FeatureState{},
		Frequencies:     &v1.FeatureState{},
		Reenlightenment: &v1.FeatureState{},
		TLBFlush:        &v1.TLBFlush{},
		IPI:             &v1.FeatureState{},
	}
}

// buses sets the bus of disks and the model of network interfaces.
func buses(s *preferenceSpec, disk v1.DiskBus, iface string) {
	devices := need(&s.Devices)
	devices.PreferredDiskBus, devices.PreferredInterfaceModel = disk, iface
}

func virtioTablet(s *preferenceSpec) {
	devices := need(&s.Devices)
	devices.PreferredInputBus, devices.PreferredInputType = v1.InputBusVirtio, v1.InputTypeTablet
}

// spread prefers two threads per core, and returns the options for the cores of a socket.
func spread(s *preferenceSpec) *v1beta1.SpreadOptions {
	cpu := need(&s.CPU)
	cpu.PreferredCPUTopology = ptr.To(v1beta1.Spread)
	options := need(&cpu.SpreadOptions)
	options.Across = ptr.To(v1beta1.SpreadAcrossSocketsCoresThreads)
	return options
}

func annotate(s *preferenceSpec, key, value string) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
}

// need returns the pointer in a field. It first sets a nil pointer to a new value.
func need[T any](field **T) *T {
	if *field == nil {
		*field = new(T)
	}
	return *field
}
