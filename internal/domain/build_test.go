// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

var update = flag.Bool("update", false, "write the golden domains of testdata instead of comparing with them")

// goldenGuests are whole domains. The integration tests define and start the domains in testdata.
var goldenGuests = map[string]func() *guest{
	"minimal":  makeGuest,
	"kvm":      func() *guest { return makeGuest().kvm().masquerade().containerDisk("root", v1.DiskBusVirtio) },
	"headless": headless,
	"containerdisk-cloudinit-masquerade": func() *guest {
		return makeGuest().containerDisk("root",
			v1.DiskBusVirtio).cloudInit(diskOn("cloudinit", v1.DiskBusVirtio)).masquerade().
			devices(func(d *v1.Devices) { d.Rng = &v1.Rng{} })
	},
	"efi":            func() *guest { return bootsEFI(false) },
	"efi-secureboot": func() *guest { return bootsEFI(true) },
	"efi-default": func() *guest {
		return makeGuest().domainSpec(func(d *v1.DomainSpec) { d.Firmware.Bootloader = &v1.Bootloader{EFI: &v1.EFI{}} })
	},
	"efi-persistent": func() *guest { return bootsPersistentEFI(false) },
	"bios-serial": func() *guest {
		return makeGuest().domainSpec(func(d *v1.DomainSpec) {
			d.Firmware.Bootloader = &v1.Bootloader{BIOS: &v1.BIOS{UseSerial: ptr.To(true)}}
		})
	},
	"kernelboot-efi": func() *guest {
		return kernelBoot().domainSpec(func(d *v1.DomainSpec) {
			d.Firmware.Bootloader = &v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false)}}
		})
	},
	"tpm": func() *guest { return withTPM(makeGuest(), v1.TPMDevice{}) },
	"tpm-persistent": func() *guest {
		return withTPM(bootsPersistentEFI(true), v1.TPMDevice{Persistent: ptr.To(true)})
	},
	"kernelboot":      kernelBoot,
	"buses":           allBuses,
	"lun":             func() *guest { return makeGuest().blockClaim(lunOn("lun", v1.DiskBusSCSI)) },
	"ephemeral-block": func() *guest { return makeGuest().ephemeralBlock(diskOn("data", v1.DiskBusVirtio)) },
	"acpi":            hasACPITables,
	"block-claim":     func() *guest { return makeGuest().blockClaim(diskOn("data", v1.DiskBusVirtio)) },
	"claim-kept": func() *guest {
		return makeGuest().fileClaim(diskOn("data", v1.DiskBusVirtio),
			func(f *domain.DiskFact) { f.KeepsSpace, f.Filled = true, true })
	},
	"tracked-claims": func() *guest {
		overlay := launcherpod.TrackedDisksDir + "/"
		tracked := func(f *domain.DiskFact) {
			f.DataPath, f.Path, f.Format, f.Filled = f.Path, overlay+"data-1048576.qcow2", "qcow2", true
		}
		return makeGuest().fileClaim(diskOn("data", v1.DiskBusVirtio), tracked).disk(
			diskOn("device", v1.DiskBusSCSI), v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}},
			domain.DiskFact{
				Path: overlay + "device-1048576.qcow2", Format: "qcow2", DataPath: launcherpod.BlockDevice("device"),
				DataBlock: true, DirectIO: true, CapacityBytes: 1 << 20,
			})
	},
	"nics":         allNICs,
	"root-complex": rootComplex,
	"cloudinit-first": func() *guest {
		return makeGuest().cloudInit(diskOn("cloudinit", v1.DiskBusVirtio)).containerDisk("root", v1.DiskBusVirtio)
	},
	"netboot":    netBoot,
	"block-size": sizedBlocks,
	"transitional": func() *guest {
		return everyDevice().devices(func(d *v1.Devices) { d.UseVirtioTransitional = ptr.To(true) })
	},
	"devices":     everyDevice,
	"iothreads":   poolOfIOThreads,
	"windows":     windows,
	"cpu-named":   namedCPU,
	"cpu-hotplug": func() *guest { return makeGuest().domainSpec(hotplugTopology) },
	"memory-hotplug": func() *guest {
		return makeGuest().domainSpec(hotplugTopology).domainSpec(func(d *v1.DomainSpec) {
			d.Memory.MaxGuest = ptr.To(resource.MustParse("256Mi"))
		})
	},
	"cpu-dedicated": func() *guest {
		return dedicated(1, 1, 0,
			1).cpu(func(c *v1.CPU) { c.IsolateEmulatorThread = true }).emptyDisk(diskOn("a", v1.DiskBusVirtio)).
			domainSpec(func(d *v1.DomainSpec) { d.IOThreadsPolicy = ptr.To(v1.IOThreadsPolicyAuto) })
	},
	"cpu-dedicated-kvm": func() *guest { return dedicated(1, 2, 0, 1).kvm() },
	"cpu-realtime": func() *guest {
		return numa("8Mi", 2, 0, 1).cpu(func(c *v1.CPU) { c.Realtime = &v1.Realtime{Mask: "0-1,^1"} })
	},
	"usb-redirection": func() *guest {
		return makeGuest().devices(func(d *v1.Devices) {
			d.ClientPassthrough = &v1.ClientPassthroughDevices{}
			d.Inputs = []v1.Input{{Name: "tablet", Type: v1.InputTypeTablet, Bus: v1.InputBusUSB}}
		})
	},
	"hugepages":     func() *guest { return makeGuest().domainSpec(guestMemory("64Mi", "2Mi")) },
	"hugepages-1gi": func() *guest { return makeGuest().domainSpec(guestMemory("1Gi", "1Gi")) },
}

func headless() *guest {
	return makeGuest().devices(func(d *v1.Devices) {
		d.AutoattachGraphicsDevice = ptr.To(false)
		d.AutoattachSerialConsole = ptr.To(false)
		d.AutoattachMemBalloon = ptr.To(false)
		d.DisableHotplug = true
	})
}

func bootsEFI(secure bool) *guest {
	return makeGuest().domainSpec(func(d *v1.DomainSpec) {
		d.Firmware.Bootloader = &v1.Bootloader{EFI: &v1.EFI{SecureBoot: &secure}}
	})
}

func bootsPersistentEFI(secure bool) *guest {
	return bootsEFI(secure).domainSpec(func(d *v1.DomainSpec) { d.Firmware.Bootloader.EFI.Persistent = ptr.To(true) })
}

func withTPM(g *guest, tpm v1.TPMDevice) *guest {
	return g.devices(func(d *v1.Devices) { d.TPM = &tpm })
}

func kernelBoot() *guest {
	return makeGuest().domainSpec(func(d *v1.DomainSpec) {
		d.Firmware.KernelBoot = &v1.KernelBoot{
			KernelArgs: "console=ttyS0",
			Container:  &v1.KernelBootContainer{Image: "kernel:1", KernelPath: "/boot/vmlinuz"},
		}
	}).on(func(f *domain.Facts) {
		f.KernelBoot = &domain.KernelBootFact{Kernel: launcherpod.KernelBootDir + "/boot/vmlinuz"}
	})
}

func hasACPITables() *guest {
	return makeGuest().secret(diskOn("tables", v1.DiskBusSATA)).domainSpec(func(d *v1.DomainSpec) {
		d.Firmware.ACPI = &v1.ACPI{SlicNameRef: "tables", MsdmNameRef: "tables"}
	}).on(func(f *domain.Facts) {
		f.ACPI = domain.ACPIFact{
			SLIC: launcherpod.VolumeFilesDir("tables") + "/" + launcherpod.SLICTable,
			MSDM: launcherpod.VolumeFilesDir("tables") + "/" + launcherpod.MSDMTable,
		}
	})
}

func allBuses() *guest {
	g := makeGuest()
	for _, bus := range []v1.DiskBus{v1.DiskBusVirtio, v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB} {
		g.emptyDisk(diskOn("disk-"+string(bus), bus))
	}
	for _, bus := range []v1.DiskBus{v1.DiskBusSATA, v1.DiskBusSCSI, v1.DiskBusUSB} {
		g.cloudInit(cdromOn("cdrom-"+string(bus), bus))
	}
	for _, bus := range []v1.DiskBus{v1.DiskBusVirtio, v1.DiskBusSCSI, v1.DiskBusUSB} {
		disk := diskOn("readonly-"+string(bus), bus)
		disk.Disk.ReadOnly = true
		g.emptyDisk(disk)
	}
	return g.devices(func(d *v1.Devices) { d.Disks = append(d.Disks, cdromOn("drive", v1.DiskBusSATA)) })
}

func allNICs() *guest {
	g := makeGuest()
	for i, model := range []string{"virtio", "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139"} {
		name := "net" + string(rune('0'+i))
		g.nic(masqueraded(name, model), "tap"+name, "02:00:00:00:01:0"+string(rune('0'+i)))
	}
	return g
}

// netBoot boots from the models whose boot ROM is in the launcher image.
func netBoot() *guest {
	g := makeGuest()
	for i, model := range []string{"virtio", "e1000", "e1000e", "rtl8139"} {
		iface := masqueraded("net"+string(rune('0'+i)), model)
		iface.BootOrder = ptr.To(uint(i) + 1)
		g.nic(iface, "tap"+iface.Name, "02:00:00:00:02:0"+string(rune('0'+i)))
	}
	return g
}

func sizedBlocks() *guest {
	disk := diskOn("sized", v1.DiskBusVirtio)
	disk.BlockSize = &v1.BlockSize{Custom: &v1.CustomBlockSize{Logical: 4096, Physical: 4096,
		DiscardGranularity: ptr.To[uint](8192)}}
	shared := diskOn("shared", v1.DiskBusSCSI)
	shared.Shareable, shared.Serial, shared.IO = ptr.To(true), "serial-1", v1.IONative
	return makeGuest().emptyDisk(disk).emptyDisk(shared).annotate(v1.DisablePCIHole64, "true")
}

func everyDevice() *guest {
	return makeGuest().masquerade().containerDisk("root", v1.DiskBusVirtio).emptyDisk(diskOn("scsi", v1.DiskBusSCSI)).
		devices(func(d *v1.Devices) {
			d.Rng = &v1.Rng{}
			d.Watchdog = &v1.Watchdog{Name: "watchdog", WatchdogDevice: v1.WatchdogDevice{I6300ESB: &v1.I6300ESBWatchdog{}}}
			d.Sound = &v1.SoundDevice{Name: "sound"}
			d.PanicDevices = []v1.PanicDevice{{Model: ptr.To(v1.Pvpanic)}, {Model: ptr.To(v1.Isa)}}
			d.Video = &v1.VideoDevice{Type: "virtio"}
			d.Inputs = []v1.Input{
				{Name: "a", Type: v1.InputTypeTablet, Bus: v1.InputBusUSB}, {Name: "b", Type: v1.InputTypeKeyboard, Bus: v1.InputBusUSB},
				{Name: "c", Type: v1.InputTypeTablet, Bus: v1.InputBusVirtio}, {Name: "d", Type: v1.InputTypeKeyboard, Bus: v1.InputBusVirtio},
			}
			d.NetworkInterfaceMultiQueue, d.BlockMultiQueue = ptr.To(true), ptr.To(true)
		}).
		domainSpec(func(d *v1.DomainSpec) {
			d.CPU = &v1.CPU{Sockets: 1, Cores: 2, Threads: 1}
			d.Firmware.Bootloader = &v1.Bootloader{BIOS: &v1.BIOS{UseSerial: ptr.To(true)}}
			d.Firmware.Serial = "VMware-42 1f 2b, <&>"
			d.Chassis = &v1.Chassis{Manufacturer: "Maker", Version: "1", Serial: "2", Asset: "3", Sku: "4"}
		})
}

func poolOfIOThreads() *guest {
	own := diskOn("own", v1.DiskBusVirtio)
	own.DedicatedIOThread = ptr.To(true)
	return makeGuest().emptyDisk(diskOn("a", v1.DiskBusVirtio)).emptyDisk(own).
		domainSpec(func(d *v1.DomainSpec) {
			d.IOThreadsPolicy = ptr.To(v1.IOThreadsPolicySupplementalPool)
			d.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: ptr.To[uint32](2)}
		})
}

func windows() *guest {
	on := &v1.FeatureState{}
	return bootsEFI(true).domainSpec(func(d *v1.DomainSpec) {
		d.Features = &v1.Features{
			APIC: &v1.FeatureAPIC{},
			SMM:  on,
			KVM:  &v1.FeatureKVM{Hidden: true},
			Hyperv: &v1.FeatureHyperv{
				Relaxed: on, VAPIC: on, Spinlocks: &v1.FeatureSpinlocks{Retries: ptr.To[uint32](8191)}, VPIndex: on, Runtime: on,
				SyNIC:      on,
				SyNICTimer: &v1.SyNICTimer{Direct: on}, Reset: on, Frequencies: on, Reenlightenment: on, TLBFlush: &v1.TLBFlush{},
				IPI: on,
			},
		}
		d.Clock = &v1.Clock{ClockOffset: v1.ClockOffset{UTC: &v1.ClockOffsetUTC{}}, Timer: &v1.Timer{
			HPET:   &v1.HPETTimer{Enabled: ptr.To(false)},
			PIT:    &v1.PITTimer{TickPolicy: v1.PITTickPolicyDelay},
			RTC:    &v1.RTCTimer{TickPolicy: v1.RTCTickPolicyCatchup},
			Hyperv: &v1.HypervTimer{},
		}}
		d.Devices.AutoattachInputDevice = ptr.To(true)
	}).emptyDisk(diskOn("root", v1.DiskBusSATA)).nic(masqueraded("default", "e1000e"), "tap0", "02:00:00:00:00:01")
}

func namedCPU() *guest {
	return makeGuest().domainSpec(func(d *v1.DomainSpec) {
		d.CPU = &v1.CPU{Sockets: 2, Cores: 1, Threads: 1, Model: "Nehalem", Features: []v1.CPUFeature{
			{Name: "x2apic", Policy: "optional"}, {Name: "vmx", Policy: "disable"},
		}}
	})
}

func hotplugTopology(d *v1.DomainSpec) {
	d.CPU = &v1.CPU{Sockets: 1, MaxSockets: 3, Cores: 2, Threads: 1}
}

func TestGoldenDomains(t *testing.T) {
	for name, makeIt := range goldenGuests {
		t.Run(name, func(t *testing.T) {
			got, err := makeIt().build(t).Marshal()
			if err != nil {
				t.Fatalf("marshal: %v", err)
			}
			path := filepath.Join("testdata", name+".xml")
			if *update {
				if err := os.WriteFile(path, []byte(got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v: make the file with -update", err)
			}
			if diff := cmp.Diff(strings.TrimSpace(string(want)), got); diff != "" {
				t.Errorf("domain differs from %s (-want +got); run with -update if it is meant to:\n%s", path, diff)
			}
		})
	}
}

func TestEveryGoldenFileHasAGuest(t *testing.T) {
	files, err := filepath.Glob("testdata/*.xml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if _, found := goldenGuests[strings.TrimSuffix(filepath.Base(file), ".xml")]; !found {
			t.Errorf("%s has no guest in goldenGuests", file)
		}
	}
}

func TestBuildDoesNotChangeItsInput(t *testing.T) {
	for name, makeIt := range goldenGuests {
		t.Run(name, func(t *testing.T) {
			g, twin := makeIt(), makeIt()
			built := g.build(t)
			// A domain that shares memory with the input would change it when the agent changes the domain.
			for i := range built.Devices.Disks {
				if boot := built.Devices.Disks[i].Boot; boot != nil {
					boot.Order = 99
				}
				if blockIO := built.Devices.Disks[i].BlockIO; blockIO != nil && blockIO.DiscardGranularity != nil {
					*blockIO.DiscardGranularity = 99
				}
			}
			expectEqual(t, g.vmi, twin.vmi)
			expectEqual(t, g.facts, twin.facts)
		})
	}
}

func TestBuildReportsAllErrors(t *testing.T) {
	g := makeGuest().domainSpec(func(d *v1.DomainSpec) {
		d.Memory = nil
		d.LaunchSecurity = &v1.LaunchSecurity{}
		d.Devices.Sound = &v1.SoundDevice{Model: "gramophone"}
	})
	_, err := domain.Build(g.vmi, g.facts)
	if err == nil {
		t.Fatal("Build accepted the guest")
	}
	for _, path := range []string{"spec.domain.memory.guest", "spec.domain.launchSecurity",
		"spec.domain.devices.sound.model"} {
		if !strings.Contains(err.Error(), path) {
			t.Errorf("error does not name %s: %v", path, err)
		}
	}
}

// The tests of specsupport cover the list of unimplemented fields.
func TestRefusesUnimplementedFields(t *testing.T) {
	makeGuest().emptyDisk(diskOn("a", v1.DiskBusVirtio)).domainSpec(func(d *v1.DomainSpec) {
		d.Devices.Disks[0].ChangedBlockTracking = ptr.To(true)
	}).expectRefused(t, "spec.domain.devices.disks[0].changedBlockTracking", "not implemented")
}
