// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestFirmware(t *testing.T) {
	machine := func(name string) option { return func(s *spec) { s.Domain.Machine = &v1.Machine{Type: name} } }
	boot := func(b v1.Bootloader) option { return firmware(v1.Firmware{Bootloader: &b}) }
	kernel := func(b v1.KernelBoot) option { return firmware(v1.Firmware{KernelBoot: &b}) }
	smm := features(v1.Features{SMM: &v1.FeatureState{}})
	const fw = "spec.domain.firmware."
	decide(t, []testCase{
		{name: "machine", object: vmi(machine("pc-q35-9.2"))},
		{name: "old machine", object: vmi(machine("pc-i440fx-2.10")), fields: []string{"spec.domain.machine.type"},
			says: "spec.domain.machine.type is not supported: pc-i440fx-2.10 (allowed values: [q35* pc-q35*])"},
		{name: "machine that only begins alike", object: vmi(machine("q3")), fields: []string{"spec.domain.machine.type"}},
		{name: "machine that the cluster allows", config: v1.KubeVirtConfiguration{EmulatedMachines: []string{"pc-i440fx-*"}}, object: vmi(machine("pc-i440fx-2.10"))},
		{name: "BIOS", object: vmi(boot(v1.Bootloader{BIOS: &v1.BIOS{}}))},
		{name: "BIOS and EFI", object: vmi(boot(v1.Bootloader{BIOS: &v1.BIOS{}, EFI: &v1.EFI{SecureBoot: ptr.To(false)}})), fields: []string{fw + "bootloader"},
			says: "has both EFI and BIOS configured, but they are mutually exclusive."},
		{name: "EFI without SMM", object: vmi(boot(v1.Bootloader{EFI: &v1.EFI{}})), fields: []string{fw + "bootloader.efi.secureBoot"},
			says: "has EFI SecureBoot enabled. SecureBoot requires SMM, which is currently disabled."},
		{name: "EFI without secure boot", object: vmi(boot(v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false)}}))},
		{name: "EFI with SMM", object: vmi(boot(v1.Bootloader{EFI: &v1.EFI{}}), smm)},
		{name: "EFI with SMM turned off", object: vmi(boot(v1.Bootloader{EFI: &v1.EFI{}}), features(v1.Features{SMM: off()})),
			fields: []string{fw + "bootloader.efi.secureBoot"}},
		{name: "machine's serial number", object: vmi(firmware(v1.Firmware{Serial: "SN_1"}))},
		{name: "machine's serial number of vSphere", object: vmi(firmware(v1.Firmware{Serial: "VMware-42 1f 2b 7c b0 9d 86 4e-1a 5f 0d 6c 9e 3b 77 21"}))},
		{name: "machine's serial number of any characters and length", object: vmi(firmware(v1.Firmware{Serial: "$/" + strings.Repeat("1", 257)}))},
		{name: "UUID that is none", object: vmi(firmware(v1.Firmware{UUID: "my-guest"})), says: "keeps the VM from starting"},
		{name: "machine of Red Hat's QEMU", object: vmi(machine("pc-q35-rhel9.2.0")), says: "a guest that starts gets pc-q35-7.2"},
		{name: "kernel", object: vmi(kernel(v1.KernelBoot{KernelArgs: "quiet", Container: &v1.KernelBootContainer{Image: "i", KernelPath: "/boot/vmlinuz"}}))},
		{name: "arguments without a container", object: vmi(kernel(v1.KernelBoot{KernelArgs: "quiet"})), fields: []string{fw + "kernelBoot.kernelArgs"},
			says: "kernel arguments cannot be provided without an external kernel"},
		{name: "arguments without a kernel", object: vmi(kernel(v1.KernelBoot{KernelArgs: "quiet", Container: &v1.KernelBootContainer{Image: "i", InitrdPath: "/initrd"}})),
			says: "keeps the VM from starting"},
		{name: "kernel without an image", object: vmi(kernel(v1.KernelBoot{Container: &v1.KernelBootContainer{KernelPath: "/k"}})),
			fields: []string{fw + "kernelBoot.container.image"}, says: "must be defined with an image"},
		{name: "kernel container without a path", object: vmi(kernel(v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "i"}})),
			fields: []string{fw + "kernelBoot.container"},
			says:   "must be defined with at least one of the following: kernelPath, initrdPath"},
		{name: "kernel at the root", object: vmi(kernel(v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "i", KernelPath: "/"}})),
			fields: []string{fw + "kernelBoot.container.kernelPath"}, says: "must not point to root"},
		{name: "kernel at a relative path", object: vmi(kernel(v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "i", KernelPath: "boot/vmlinuz"}})),
			fields: []string{fw + "kernelBoot.container.kernelPath"}},
		{name: "initrd at a path that climbs", object: vmi(kernel(v1.KernelBoot{Container: &v1.KernelBootContainer{Image: "i", InitrdPath: "/boot/../initrd"}})),
			fields: []string{fw + "kernelBoot.container.initrdPath"}},
		{name: "ACPI without a table", object: vmi(firmware(v1.Firmware{ACPI: &v1.ACPI{}})), fields: []string{fw + "acpi"},
			says: "ACPI was set but no SLIC nor MSDM volume reference was set"},
		{name: "ACPI table of no volume", object: vmi(firmware(v1.Firmware{ACPI: &v1.ACPI{SlicNameRef: "slic"}})), fields: []string{fw + "acpi.slicNameRef"},
			says: "does not have a matching Volume."},
		{name: "ACPI table of a claim", object: vmi(firmware(v1.Firmware{ACPI: &v1.ACPI{MsdmNameRef: "msdm"}}), volume("msdm", *claim("c"))),
			fields: []string{fw + "acpi.msdmNameRef"}, says: "refers to Volume of unsupported type."},
		{name: "ACPI table of a secret", object: vmi(firmware(v1.Firmware{ACPI: &v1.ACPI{SlicNameRef: "slic"}}),
			volume("slic", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}))},
	})
}

func TestFeatures(t *testing.T) {
	hyperv := func(h v1.FeatureHyperv) option { return features(v1.Features{Hyperv: &h}) }
	const h = "spec.domain.features.hyperv"
	decide(t, []testCase{
		{name: "Hyper-V", object: vmi(hyperv(v1.FeatureHyperv{Relaxed: on(), VAPIC: on(), SyNICTimer: &v1.SyNICTimer{}}))},
		{name: "Hyper-V and its passthrough", object: vmi(features(v1.Features{Hyperv: &v1.FeatureHyperv{}, HypervPassthrough: &v1.HyperVPassthrough{}})),
			fields: []string{h}, says: "Cannot explicitly set hyperV features if HypervPassthrough is being used."},
		{name: "Hyper-V passthrough", object: vmi(features(v1.Features{HypervPassthrough: &v1.HyperVPassthrough{}}))},
		{name: "timer without its controller", object: vmi(hyperv(v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{}, SyNIC: off()})), fields: []string{h + ".synictimer"},
			says: "requires 'spec.domain.features.hyperv.synic', which was disabled."},
		{name: "controller without its index", object: vmi(hyperv(v1.FeatureHyperv{SyNIC: on(), VPIndex: off()})), fields: []string{h + ".synic"}, says: "which was disabled."},
		{name: "flushes without an index", object: vmi(hyperv(v1.FeatureHyperv{TLBFlush: &v1.TLBFlush{}, VPIndex: off()})), fields: []string{h + ".tlbflush"}},
		{name: "interrupts without an index", object: vmi(hyperv(v1.FeatureHyperv{IPI: on(), VPIndex: off()})), fields: []string{h + ".ipi"}},
		{name: "enlightened VMCS", object: vmi(hyperv(v1.FeatureHyperv{EVMCS: on()}))},
		{name: "enlightened VMCS without its controller", object: vmi(hyperv(v1.FeatureHyperv{EVMCS: on(), VAPIC: off()})), fields: []string{h + ".evmcs"}},
		{name: "timer without its controller in a template", object: vm(hyperv(v1.FeatureHyperv{SyNICTimer: &v1.SyNICTimer{}, SyNIC: off()})),
			says: "keeps the VM from starting"},
	})
}

func TestArchitectures(t *testing.T) {
	multi := gates("MultiArchitecture")
	arm, ibm := onArchitecture("arm64"), onArchitecture("s390x")
	dog := func(d v1.WatchdogDevice) option {
		return devices(func(devices *v1.Devices) { devices.Watchdog = &v1.Watchdog{Name: "dog", WatchdogDevice: d} })
	}
	i6300esb := v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{Action: "reset"}}
	diag288 := v1.WatchdogDevice{Diag288: &v1.Diag288Watchdog{Action: "reset"}}
	video := func(kind string) option {
		return devices(func(d *v1.Devices) { d.Video = &v1.VideoDevice{Type: kind} })
	}
	model := func(m string) option {
		return devices(func(d *v1.Devices) { d.PanicDevices = []v1.PanicDevice{{Model: ptr.To(v1.PanicDeviceModel(m))}} })
	}
	decide(t, []testCase{
		{name: "another architecture without the gate", object: vmi(ibm), fields: []string{"spec.architecture"}, says: "feature gate is not enabled in kubevirt-config"},
		{name: "another architecture", config: multi, object: vmi(ibm)},
		{name: "unknown architecture", config: multi, object: vmi(onArchitecture("riscv64")), fields: []string{"spec.architecture"}, says: "unsupported architecture: riscv64"},
		{name: "arm64", config: multi, object: vmi(arm)},
		{name: "arm64 with a BIOS", config: multi, object: vmi(arm, firmware(v1.Firmware{Bootloader: &v1.Bootloader{BIOS: &v1.BIOS{}}})),
			fields: []string{"spec.domain.firmware.bootloader.bios"},
			says:   "Arm64 does not support bios boot, please change to uefi boot"},
		{name: "arm64 with secure boot", config: multi, object: vmi(arm, features(v1.Features{SMM: on()}), firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}}})),
			fields: []string{"spec.domain.firmware.bootloader.efi.secureBoot"},
			says:   "UEFI secure boot is currently not supported on aarch64 Arch"},
		{name: "arm64 with the host's model", config: multi, object: vmi(arm, cpu(v1.CPU{Model: "host-model"})), fields: []string{cpuField + "model"},
			says: "Arm64 not support CPU host-model"},
		{name: "arm64 with sata", config: multi, object: vmi(arm, hardDisk(func(d *v1.Disk) { d.Disk.Bus = "sata" })), fields: []string{at("disks[0].disk.bus")},
			says: "Arm64 not support this disk bus type, please use virtio or scsi"},
		{name: "arm64 with sound", config: multi, object: vmi(arm, devices(func(d *v1.Devices) { d.Sound = &v1.SoundDevice{Name: "s"} })), fields: []string{at("sound")},
			says: "Arm64 not support sound device"},
		{name: "arm64 with a watchdog", config: multi, object: vmi(arm, dog(i6300esb)), fields: []string{at("watchdog")}, says: "Arm64 not support Watchdog device"},
		{name: "amd64 with its watchdog", object: vmi(dog(i6300esb))},
		{name: "amd64 with a watchdog of no model", object: vmi(dog(v1.WatchdogDevice{}))},
		{name: "amd64 with the watchdog of s390x", object: vmi(dog(diag288)), fields: []string{at("watchdog")}, says: "amd64 only supports I6300ESB watchdog device"},
		{name: "s390x with its watchdog", config: multi, object: vmi(ibm, dog(diag288))},
		{name: "s390x with the watchdog of amd64", config: multi, object: vmi(ibm, dog(i6300esb)), fields: []string{at("watchdog")},
			says: "s390x only supports Diag288 watchdog device"},
		{name: "watchdog that barks", object: vmi(dog(v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{Action: "bark"}})), says: "keeps the VM from starting"},
		{name: "graphics card", object: vmi(video("bochs"))},
		{name: "unknown graphics card", object: vmi(video("voodoo")), fields: []string{at("video.type")}, says: "video model 'voodoo' is not supported on amd64 architecture"},
		{name: "s390x with VGA", config: multi, object: vmi(ibm, video("vga")), fields: []string{at("video.type")}, says: "is not supported on s390x architecture"},
		{name: "graphics card without graphics", object: vmi(devices(func(d *v1.Devices) {
			d.Video, d.AutoattachGraphicsDevice = &v1.VideoDevice{Type: "vga"}, ptr.To(false)
		})), fields: []string{at("video")},
			says: "Video configuration is not allowed when autoattachGraphicsDevice is set to false"},
		{name: "panic device", object: vmi(model("pvpanic"))},
		{name: "unknown panic device", object: vmi(model("siren")), fields: []string{at("panicDevices[0].model")}, says: "invalid PanicDeviceModel(siren)"},
		{name: "s390x with a panic device", config: multi, object: vmi(ibm, model("isa")), fields: []string{at("panicDevices")},
			says: "custom panic devices are not supported on s390x architecture"},
	})
}

func TestDevices(t *testing.T) {
	input := func(i v1.Input) option { return devices(func(d *v1.Devices) { d.Inputs = []v1.Input{i} }) }
	sound := func(s v1.SoundDevice) option { return devices(func(d *v1.Devices) { d.Sound = &s }) }
	threads := func(p v1.IOThreadsPolicy, n *uint32) option {
		return func(s *spec) {
			s.Domain.IOThreadsPolicy = &p
			if n != nil {
				s.Domain.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: n}
			}
		}
	}
	secure := func(l v1.LaunchSecurity, secureBoot bool) option {
		return func(s *spec) {
			s.Domain.LaunchSecurity = &l
			s.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(secureBoot)}}}
			s.Domain.Features = &v1.Features{}
			if secureBoot {
				s.Domain.Features.SMM = on()
			}
		}
	}
	sev := v1.LaunchSecurity{SEV: &v1.SEV{}}
	const launch = "spec.domain.launchSecurity"
	decide(t, []testCase{
		{name: "tablet", object: vmi(input(v1.Input{Name: "t", Type: "tablet", Bus: "usb"}))},
		{name: "keyboard", object: vmi(input(v1.Input{Name: "k", Type: "keyboard", Bus: "virtio"})), differs: "KubeVirt's older versions take tablets only; QEMU has both"},
		{name: "mouse", object: vmi(input(v1.Input{Name: "m", Type: "mouse"})), fields: []string{at("inputs[0].type")}, says: "Input device can have only tablet"},
		{name: "tablet on ps2", object: vmi(input(v1.Input{Name: "t", Type: "tablet", Bus: "ps2"})), fields: []string{at("inputs[0].bus")},
			says: "Input device can have only virtio or usb bus."},
		{name: "sound", object: vmi(sound(v1.SoundDevice{Name: "s", Model: "ac97"}))},
		{name: "sound without a name", object: vmi(sound(v1.SoundDevice{})), fields: []string{at("sound.name")}, says: "Sound device requires a name field."},
		{name: "unknown sound card", object: vmi(sound(v1.SoundDevice{Name: "s", Model: "sb16"})), fields: []string{at("sound.model")},
			says: "Sound device type is not supported. Options: 'ich9' or 'ac97'"},
		{name: "shared I/O threads", object: vmi(threads(v1.IOThreadsPolicyShared, nil))},
		{name: "unknown policy of I/O threads", object: vmi(threads("mine", nil)), fields: []string{"spec.domain.ioThreadsPolicy"}, says: "Invalid IOThreadsPolicy (mine)"},
		{name: "pool of I/O threads", object: vmi(threads(v1.IOThreadsPolicySupplementalPool, ptr.To(uint32(4))))},
		{name: "pool of I/O threads without a number", object: vmi(threads(v1.IOThreadsPolicySupplementalPool, nil)),
			fields: []string{"spec.domain.ioThreads.supplementalPoolThreadCount"},
			says:   "the number of iothreads needs to be set and positive for the dedicated policy"},
		{name: "pool of no I/O threads", object: vmi(threads(v1.IOThreadsPolicySupplementalPool, ptr.To(uint32(0)))),
			fields: []string{"spec.domain.ioThreads.supplementalPoolThreadCount"}},
		{name: "host device without the gate", object: vmi(devices(func(d *v1.Devices) { d.HostDevices = []v1.HostDevice{{Name: "h", DeviceName: "d"}} })),
			fields: []string{at("hostDevices")}, says: "Host Devices feature gate is not enabled in kubevirt-config"},
		{name: "host device", config: gates("HostDevices"), object: vmi(devices(func(d *v1.Devices) { d.HostDevices = []v1.HostDevice{{Name: "h", DeviceName: "d"}} }))},
		{name: "GPU", object: vmi(devices(func(d *v1.Devices) { d.GPUs = []v1.GPU{{Name: "g", DeviceName: "d"}} }))},
		{name: "two GPUs that show the boot", object: vmi(devices(func(d *v1.Devices) {
			display := &v1.VGPUOptions{Display: &v1.VGPUDisplayOptions{}}
			d.GPUs = []v1.GPU{{Name: "a", DeviceName: "d", VirtualGPUOptions: display},
				{Name: "b", DeviceName: "d", VirtualGPUOptions: display}}
		})), fields: []string{at("gpus")}, says: "configuring multiple displays with ramfb is not valid"},
		{name: "VSOCK without the gate", object: vmi(devices(func(d *v1.Devices) { d.AutoattachVSOCK = ptr.To(true) })), fields: []string{at("autoattachVSOCK")},
			says: "VSOCK feature gate is not enabled in kubevirt-config"},
		{name: "no VSOCK", object: vmi(devices(func(d *v1.Devices) { d.AutoattachVSOCK = ptr.To(false) }))},
		{name: "downward metrics device without the gate", object: vmi(devices(func(d *v1.Devices) { d.DownwardMetrics = &v1.DownwardMetrics{} })),
			fields: []string{at("downwardMetrics")}, says: "DownwardMetrics feature gate is not enabled"},
		{name: "encrypted guest", object: vmi(secure(sev, false))},
		{name: "encrypted guest without the gate", config: without("WorkloadEncryptionSEV"), object: vmi(secure(sev, false)), fields: []string{launch},
			says: "WorkloadEncryptionSEV feature gate is not enabled in kubevirt-config"},
		{name: "encryption of two kinds", object: vmi(secure(v1.LaunchSecurity{SEV: &v1.SEV{}, SNP: &v1.SEVSNP{}}, false)), fields: []string{launch},
			says: "One and only one launchSecurity type can be set"},
		{name: "encrypted guest with a BIOS", object: vmi(with(func(s *spec) { s.Domain.LaunchSecurity = sev.DeepCopy() })), fields: []string{launch}, says: "SEV requires OVMF (UEFI)"},
		{name: "encrypted guest with secure boot", object: vmi(secure(sev, true)), fields: []string{launch}, says: "SEV does not work along with SecureBoot"},
		{name: "attestation of a guest that runs at once", object: vmi(secure(v1.LaunchSecurity{SEV: &v1.SEV{Attestation: &v1.SEVAttestation{}}}, false)),
			fields: []string{launch + ".sev.attestation"}, says: "SEV attestation requires VMI StartStrategy 'Paused'"},
		{name: "encrypted guest that boots from the network", object: vmi(secure(sev, false), onPod(func(i *v1.Interface) { i.BootOrder = ptr.To(uint(1)) })),
			fields: []string{at("interfaces[0].bootOrder")}, says: "SEV does not work with bootable NICs"},
		{name: "TDX with SMM", config: gates("WorkloadEncryptionTDX"), object: vmi(secure(v1.LaunchSecurity{TDX: &v1.TDX{}}, true)), fields: []string{launch},
			says: "TDX does not work along with SMM"},
	})
}
