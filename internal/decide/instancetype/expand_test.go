// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package instancetype_test

import (
	"math/rand"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
)

// parse reads YAML. Text without any returns nil.
func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	if text == "" {
		return nil
	}
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return object
}

// templateOf returns a template with a spec, which may have annotations before a line with a semicolon.
func templateOf(t *testing.T, spec string) *v1.VirtualMachineInstanceTemplateSpec {
	t.Helper()
	template := &v1.VirtualMachineInstanceTemplateSpec{}
	annotations, rest, found := strings.Cut(spec, ";")
	if found {
		spec = rest
		template.ObjectMeta.Annotations = *parse[map[string]string](t, annotations)
	}
	template.Spec = *parse[v1.VirtualMachineInstanceSpec](t, spec)
	return template
}

const size = "cpu: {guest: 2}, memory: {guest: 1Gi}"

// sized is the domain that an instance type of that size gives a template without one.
const sized = "cpu: {sockets: 2, cores: 1, threads: 1}, memory: {guest: 1Gi}"

func TestInstancetype(t *testing.T) {
	for name, tc := range map[string]struct{ template, instancetype, want string }{
		"size":            {`{domain: {devices: {}}}`, `{` + size + `}`, `{domain: {devices: {}, ` + sized + `}}`},
		"nodeSelector":    {`{domain: {devices: {}}}`, `{nodeSelector: {a: b}, ` + size + `}`, `{nodeSelector: {a: b}, domain: {devices: {}, ` + sized + `}}`},
		"no nodeSelector": {`{nodeSelector: {c: d}, domain: {devices: {}}}`, `{` + size + `}`, `{nodeSelector: {c: d}, domain: {devices: {}, ` + sized + `}}`},
		"schedulerName":   {`{domain: {devices: {}}}`, `{schedulerName: mine, ` + size + `}`, `{schedulerName: mine, domain: {devices: {}, ` + sized + `}}`},
		"CPU": {
			`{domain: {devices: {}, cpu: {features: [{name: vmx}], maxSockets: 3}}}`,
			`{cpu: {guest: 2, model: host-model, dedicatedCPUPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}},
				realtime: {mask: "0"}, maxSockets: 8}, memory: {guest: 1Gi}}`,
			`{domain: {devices: {}, memory: {guest: 1Gi}, cpu: {sockets: 2, cores: 1, threads: 1, features: [{name: vmx}], model: host-model,
				dedicatedCpuPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}}, realtime: {mask: "0"}, maxSockets: 8}}}`,
		},
		"the VM's CPU": {
			`{domain: {devices: {}, cpu: {model: host-model, dedicatedCpuPlacement: true, maxSockets: 3}}}`, `{` + size + `}`,
			`{domain: {devices: {}, memory: {guest: 1Gi}, cpu: {sockets: 2, cores: 1, threads: 1, model: host-model, dedicatedCpuPlacement: true, maxSockets: 3}}}`,
		},
		"memory": {
			`{domain: {devices: {}, memory: {reservedOverhead: {addedOverhead: 1Mi}}}}`,
			`{cpu: {guest: 1}, memory: {guest: 2Gi, maxGuest: 4Gi, hugepages: {pageSize: 2Mi}}}`,
			`{domain: {devices: {}, cpu: {sockets: 1, cores: 1, threads: 1},
				memory: {guest: 2Gi, maxGuest: 4Gi, hugepages: {pageSize: 2Mi}, reservedOverhead: {addedOverhead: 1Mi}}}}`,
		},
		"overcommit": {
			`{domain: {devices: {}}}`, `{cpu: {guest: 2}, memory: {guest: 1Gi, overcommitPercent: 15}}`,
			// Not 912680550: KubeVirt computes with 24 bits.
			`{domain: {devices: {}, ` + sized + `, resources: {requests: {memory: "912680576"}}}}`,
		},
		"I/O threads": {
			`{domain: {devices: {}, ioThreads: {}}}`, `{ioThreads: {supplementalPoolThreadCount: 4}, ioThreadsPolicy: supplementalPool, ` + size + `}`,
			`{domain: {devices: {}, ioThreads: {supplementalPoolThreadCount: 4}, ioThreadsPolicy: supplementalPool, ` + sized + `}}`,
		},
		"launchSecurity": {`{domain: {devices: {}}}`, `{launchSecurity: {sev: {}}, ` + size + `}`, `{domain: {devices: {}, launchSecurity: {sev: {}}, ` + sized + `}}`},
		"devices of the node": {
			`{domain: {devices: {}}}`, `{gpus: [{name: a, deviceName: b}], hostDevices: [{name: c, deviceName: d}], ` + size + `}`,
			`{domain: {devices: {gpus: [{name: a, deviceName: b}], hostDevices: [{name: c, deviceName: d}]}, ` + sized + `}}`,
		},
		"annotations": {
			`{a: b, c: d};{domain: {devices: {}}}`, `{annotations: {a: b, e: f}, ` + size + `}`,
			`{a: b, c: d, e: f};{domain: {devices: {}, ` + sized + `}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, conflicts := instancetype.Expand(templateOf(t, tc.template),
				parse[v1beta1.VirtualMachineInstancetypeSpec](t, tc.instancetype), nil)
			if len(conflicts) > 0 {
				t.Fatalf("conflicts: %v", conflicts)
			}
			if diff := cmp.Diff(templateOf(t, tc.want), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// everything is an instance type that sets every field.
const everything = `{nodeSelector: {a: b}, schedulerName: mine, cpu: {guest: 2, model: host-model, dedicatedCPUPlacement: false,
	isolateEmulatorThread: false, numa: {}, realtime: {}, maxSockets: 4}, memory: {guest: 1Gi, maxGuest: 4Gi,
	hugepages: {pageSize: 2Mi}}, ioThreads: {supplementalPoolThreadCount: 4}, ioThreadsPolicy: auto, launchSecurity: {},
	gpus: [{name: a}], hostDevices: [{name: a}], annotations: {a: b, c: d}}`

func TestConflicts(t *testing.T) {
	for spec, want := range map[string][]string{
		`{domain: {devices: {}, cpu: {maxSockets: 3}}}`:               nil,
		`{nodeSelector: {}, domain: {devices: {}}}`:                   {"nodeSelector"},
		`{schedulerName: other, domain: {devices: {}}}`:               {"schedulerName"},
		`{domain: {devices: {}, cpu: {sockets: 1}}}`:                  {"domain.cpu.sockets"},
		`{domain: {devices: {}, cpu: {cores: 1}}}`:                    {"domain.cpu.cores"},
		`{domain: {devices: {}, cpu: {threads: 1}}}`:                  {"domain.cpu.threads"},
		`{domain: {devices: {}, cpu: {model: a}}}`:                    {"domain.cpu.model"},
		`{domain: {devices: {}, cpu: {dedicatedCpuPlacement: true}}}`: {"domain.cpu.dedicatedCPUPlacement"},
		`{domain: {devices: {}, cpu: {isolateEmulatorThread: true}}}`: {"domain.cpu.isolateEmulatorThread"},
		`{domain: {devices: {}, cpu: {numa: {}}}}`:                    {"domain.cpu.numa"},
		`{domain: {devices: {}, cpu: {realtime: {}}}}`:                {"domain.cpu.realtime"},
		`{domain: {devices: {}, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}}}`: {
			"domain.resources.requests.cpu", "domain.resources.limits.cpu", "domain.resources.requests.memory",
			"domain.resources.limits.memory",
		},
		`{domain: {devices: {}, memory: {guest: 1Gi, maxGuest: 1Gi, hugepages: {}}}}`: {
			"domain.memory.guest", "domain.memory.hugepages", "domain.memory.maxGuest",
		},
		`{domain: {devices: {}, ioThreads: {supplementalPoolThreadCount: 1}}}`: {"domain.ioThreads.supplementalPoolThreadCount"},
		`{domain: {devices: {}, ioThreadsPolicy: shared}}`:                     {"domain.ioThreadsPolicy"},
		`{domain: {devices: {}, launchSecurity: {}}}`:                          {"domain.launchSecurity"},
		`{domain: {devices: {gpus: [{name: b}]}}}`:                             {"domain.devices.gpus"},
		`{domain: {devices: {hostDevices: [{name: b}]}}}`:                      {"domain.devices.hostDevices"},
		`{a: other, c: other};{domain: {devices: {}}}`:                         {"annotations.a", "annotations.c"},
	} {
		t.Run(spec, func(t *testing.T) {
			template := templateOf(t, spec)
			got, conflicts := instancetype.Expand(template, parse[v1beta1.VirtualMachineInstancetypeSpec](t, everything),
				parse[v1beta1.VirtualMachinePreferenceSpec](t, `{preferredSubdomain: sub}`))
			var paths []string
			for _, conflict := range conflicts {
				paths = append(paths, conflict.Path)
			}
			if diff := cmp.Diff(want, paths); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(template, got); (diff == "") != (len(want) > 0) {
				t.Errorf("with conflicts, and only then, nothing is applied (-template +got)\n%s", diff)
			}
		})
	}
}

func TestTextsOfConflicts(t *testing.T) {
	_, conflicts := instancetype.Expand(templateOf(t, `{a: other};{schedulerName: other, domain: {devices: {}}}`),
		parse[v1beta1.VirtualMachineInstancetypeSpec](t, everything), nil)
	for got, want := range map[string]string{
		conflicts.ErrStore().Error(): "VM field(s) spec.template.spec.schedulerName, annotations.a conflicts with selected instance type",
		conflicts.ErrVM().Error():    "VM conflicts with instancetype spec in fields: [spec.template.spec.schedulerName, annotations.a]",
		conflicts.ErrVMI().Error():   "VMI conflicts with instancetype spec in fields: [spec.schedulerName, annotations.a]",
		conflicts.Admission().ToAggregate().Error(): "[spec.template.spec.schedulerName: Invalid value: VM field(s) spec.template.spec.schedulerName " +
			"conflicts with selected instance type, annotations.a: Invalid value: VM field(s) annotations.a conflicts with selected instance type]",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	conflicts = nil
	if conflicts.ErrStore() != nil || conflicts.ErrVM() != nil || conflicts.ErrVMI() != nil ||
		len(conflicts.Admission()) > 0 {
		t.Error("no conflicts are an error")
	}
}

// nic is what the default interface adds to a spec.
const nic = `networks: [{name: default, pod: {}}]`

func TestPreference(t *testing.T) {
	for name, tc := range map[string]struct{ template, preference, want string }{
		"implicit devices": {
			`{volumes: [{name: a, emptyDisk: {capacity: 1Gi}}, {name: m, memoryDump: {claimName: c}}], domain: {devices: {}}}`, `{}`,
			`{volumes: [{name: a, emptyDisk: {capacity: 1Gi}}, {name: m, memoryDump: {claimName: c}}], ` + nic + `,
				domain: {devices: {disks: [{name: a, disk: {}}], interfaces: [{name: default}]}}}`,
		},
		"implicit devices get preferences": {
			`{volumes: [{name: a, emptyDisk: {capacity: 1Gi}}], domain: {devices: {}}}`,
			`{devices: {preferredDiskBus: virtio, preferredInterfaceModel: e1000e, preferredInterfaceMasquerade: {}, preferredAutoattachInputDevice: true,
				preferredInputBus: virtio, preferredInputType: keyboard}}`,
			`{volumes: [{name: a, emptyDisk: {capacity: 1Gi}}], ` + nic + `, domain: {devices: {autoattachInputDevice: true,
				disks: [{name: a, disk: {bus: virtio}}], interfaces: [{name: default, model: e1000e, masquerade: {}}],
				inputs: [{name: default-0, bus: virtio, type: keyboard}]}}}`,
		},
		"no interface": {
			`{domain: {devices: {}}}`, `{devices: {preferredAutoattachPodInterface: false, preferredInterfaceModel: e1000e}}`,
			`{domain: {devices: {autoattachPodInterface: false}}}`,
		},
		"autoattach": {
			`{domain: {devices: {autoattachPodInterface: false, autoattachSerialConsole: true, autoattachInputDevice: false}}}`,
			`{devices: {preferredAutoattachGraphicsDevice: false, preferredAutoattachMemBalloon: false, preferredAutoattachSerialConsole: false,
				preferredAutoattachPodInterface: true, preferredAutoattachInputDevice: true}}`,
			`{domain: {devices: {autoattachPodInterface: false, autoattachSerialConsole: true, autoattachInputDevice: false,
				autoattachGraphicsDevice: false, autoattachMemBalloon: false}}}`,
		},
		"CPU features without CPU": {bare, `{cpu: {preferredCPUFeatures: [{name: vmx, policy: require}]}}`, withDomain(`cpu: {features: [{name: vmx, policy: require}]}`)},
		"CPU features": {
			withDomain(`cpu: {cores: 2, features: [{name: vmx, policy: disable}]}`), `{cpu: {preferredCPUFeatures: [{name: vmx}, {name: svm}]}}`,
			withDomain(`cpu: {cores: 2, features: [{name: vmx, policy: disable}, {name: svm}]}`),
		},
		"a topology alone": {withDomain(`cpu: {sockets: 4}`), `{cpu: {preferredCPUTopology: cores}}`, withDomain(`cpu: {sockets: 4}`)},
		"flags": {
			bare, `{devices: {preferredUseVirtioTransitional: true, preferredBlockMultiQueue: true, preferredNetworkInterfaceMultiQueue: true, preferredDisableHotplug: true}}`,
			withDevices(`useVirtioTransitional: true, blockMultiQueue: true, networkInterfaceMultiqueue: true, disableHotplug: true`),
		},
		"flags of the VM": {
			withDevices(`useVirtioTransitional: false, blockMultiQueue: false, networkInterfaceMultiqueue: false, disableHotplug: true`),
			`{devices: {preferredUseVirtioTransitional: true, preferredBlockMultiQueue: true, preferredNetworkInterfaceMultiQueue: true, preferredDisableHotplug: false}}`,
			withDevices(`useVirtioTransitional: false, blockMultiQueue: false, networkInterfaceMultiqueue: false, disableHotplug: true`),
		},
		"no sound": {bare, `{devices: {preferredSoundModel: ac97}}`, bare},
		"sound":    {withDevices(`sound: {name: s}`), `{devices: {preferredSoundModel: ac97}}`, withDevices(`sound: {name: s, model: ac97}`)},
		"rng, TPM, panic device and video": {
			bare, `{devices: {preferredRng: {}, preferredTPM: {persistent: true}, preferredPanicDeviceModel: isa, preferredVideoType: bochs}}`,
			withDevices(`rng: {}, tpm: {persistent: true}, panicDevices: [{model: isa}], video: {type: bochs}`),
		},
		"TPM, panic devices and video of the VM": {
			withDevices(`tpm: {enabled: false}, panicDevices: [{}, {model: pvpanic}], video: {}`),
			`{devices: {preferredTPM: {persistent: true}, preferredPanicDeviceModel: isa, preferredVideoType: bochs}}`,
			withDevices(`tpm: {enabled: false}, panicDevices: [{model: isa}, {model: pvpanic}], video: {type: bochs}`),
		},
		"disks": {
			withDevices(`disks: [{name: a}, {name: b, disk: {bus: sata}}, {name: c, cdrom: {}}, {name: d, lun: {}}]`),
			`{devices: {preferredDiskBus: virtio, preferredCdromBus: scsi, preferredLunBus: scsi, preferredDiskCache: none, preferredDiskIO: native,
				preferredDiskBlockSize: {matchVolume: {}}, preferredDiskDedicatedIoThread: true}}`,
			withDevices(`disks: [{name: a, disk: {bus: virtio}, cache: none, io: native, blockSize: {matchVolume: {}}, dedicatedIOThread: true},
				{name: b, disk: {bus: sata}, cache: none, io: native, blockSize: {matchVolume: {}}}, {name: c, cdrom: {bus: scsi}}, {name: d, lun: {bus: scsi}}]`),
		},
		"interfaces of the VM": {
			`{domain: {devices: {interfaces: [{name: a, model: virtio, bridge: {}}, {name: b}, {name: c, binding: {name: x}}]}},
				networks: [{name: a, pod: {}}, {name: b, multus: {networkName: net}}, {name: c, pod: {}}]}`,
			`{devices: {preferredInterfaceModel: e1000e, preferredInterfaceMasquerade: {}}}`,
			`{domain: {devices: {interfaces: [{name: a, model: virtio, bridge: {}}, {name: b, model: e1000e}, {name: c, model: e1000e, binding: {name: x}}]}},
				networks: [{name: a, pod: {}}, {name: b, multus: {networkName: net}}, {name: c, pod: {}}]}`,
		},
		"inputs of the VM": {
			withDevices(`inputs: [{name: a, bus: usb}, {name: b, type: tablet}]`), `{devices: {preferredInputBus: virtio, preferredInputType: keyboard}}`,
			withDevices(`inputs: [{name: a, bus: usb, type: keyboard}, {name: b, bus: virtio, type: tablet}]`),
		},
		"virtual GPU options": {withDevices(`gpus: [{name: a}]`), `{devices: {preferredVirtualGPUOptions: {display: {enabled: true}}}}`, withDevices(`gpus: [{name: a}]`)},
		"features": {
			bare, `{features: {preferredAcpi: {enabled: false}, preferredApic: {endOfInterrupt: true}, preferredKvm: {hidden: true}, preferredPvspinlock: {}, preferredSmm: {}}}`,
			withDomain(`features: {acpi: {enabled: false}, apic: {endOfInterrupt: true}, kvm: {hidden: true}, pvspinlock: {}, smm: {}}`),
		},
		"features of the VM": {
			withDomain(`features: {acpi: {enabled: true}, apic: {}, kvm: {}, pvspinlock: {enabled: false}, smm: {enabled: false}}`),
			`{features: {preferredAcpi: {enabled: false}, preferredApic: {endOfInterrupt: true}, preferredKvm: {hidden: true}, preferredPvspinlock: {}, preferredSmm: {}}}`,
			withDomain(`features: {acpi: {enabled: true}, apic: {}, kvm: {}, pvspinlock: {enabled: false}, smm: {enabled: false}}`),
		},
		"Hyper-V": {
			withDomain(`features: {hyperv: {relaxed: {enabled: false}}}`), `{features: {preferredHyperv: {relaxed: {}, vapic: {}, spinlocks: {spinlocks: 8191}}}}`,
			withDomain(`features: {hyperv: {relaxed: {enabled: false}, vapic: {}, spinlocks: {spinlocks: 8191}}}`),
		},
		"Hyper-V of the node": {withDomain(`features: {hypervPassthrough: {}}`), `{features: {preferredHyperv: {relaxed: {}}}}`, withDomain(`features: {hypervPassthrough: {}}`)},
		"BIOS":                {bare, `{firmware: {preferredUseBios: true, preferredUseBiosSerial: true}}`, withDomain(`firmware: {bootloader: {bios: {useSerial: true}}}`)},
		"serial of the VM's BIOS": {
			withDomain(`firmware: {bootloader: {bios: {useSerial: false}}}`), `{firmware: {preferredUseBiosSerial: true, preferredEfi: {}}}`,
			withDomain(`firmware: {bootloader: {bios: {useSerial: false}}}`),
		},
		"no firmware": {bare, `{firmware: {preferredUseBios: false, preferredUseBiosSerial: true, preferredUseEfi: false, preferredUseSecureBoot: true}}`, bare},
		"EFI": {
			bare, `{firmware: {preferredEfi: {persistent: true}, preferredUseSecureBoot: false}}`, withDomain(`firmware: {bootloader: {efi: {persistent: true}}}`),
		},
		"older EFI": {
			withDomain(`firmware: {serial: s}`), `{firmware: {preferredUseEfi: true, preferredUseSecureBoot: false}}`,
			withDomain(`firmware: {serial: s, bootloader: {efi: {secureBoot: false}}}`),
		},
		"EFI of the VM": {
			withDomain(`firmware: {bootloader: {efi: {}}}`), `{firmware: {preferredUseBios: true, preferredEfi: {persistent: true}, preferredUseSecureBoot: false}}`,
			withDomain(`firmware: {bootloader: {efi: {secureBoot: false}}}`),
		},
		"machine":           {bare, `{machine: {preferredMachineType: q35}}`, withDomain(`machine: {type: q35}`)},
		"machine of the VM": {withDomain(`machine: {type: pc}`), `{machine: {preferredMachineType: q35}}`, withDomain(`machine: {type: pc}`)},
		"clock": {
			bare, `{clock: {preferredClockOffset: {utc: {offsetSeconds: 3}}, preferredTimer: {hpet: {present: false}}}}`,
			withDomain(`clock: {utc: {offsetSeconds: 3}, timer: {hpet: {present: false}}}`),
		},
		"clock of the VM": {
			withDomain(`clock: {timezone: Europe/Berlin, timer: {}}`), `{clock: {preferredClockOffset: {utc: {}}, preferredTimer: {hpet: {present: false}}}}`,
			withDomain(`clock: {timezone: Europe/Berlin, timer: {}}`),
		},
		"the rest": {
			bare, `{preferredSubdomain: sub, preferredTerminationGracePeriodSeconds: 180, preferredArchitecture: arm64, preferredLaunchSecurity: {tdx: {}}, annotations: {a: b}}`,
			`{a: b};{subdomain: sub, terminationGracePeriodSeconds: 180, architecture: arm64, domain: {launchSecurity: {tdx: {}}, devices: {autoattachPodInterface: false}}}`,
		},
		"the rest of the VM": {
			`{a: own};{subdomain: own, terminationGracePeriodSeconds: 0, architecture: amd64, domain: {launchSecurity: {sev: {}}, devices: {autoattachPodInterface: false}}}`,
			`{preferredSubdomain: sub, preferredTerminationGracePeriodSeconds: 180, preferredArchitecture: arm64, preferredLaunchSecurity: {tdx: {}}, annotations: {a: b}}`,
			`{a: own};{subdomain: own, terminationGracePeriodSeconds: 0, architecture: amd64, domain: {launchSecurity: {sev: {}}, devices: {autoattachPodInterface: false}}}`,
		},
		"not applied": {bare, `{volumes: {preferredStorageClassName: fast}, requirements: {cpu: {guest: 8}}}`, bare},
	} {
		t.Run(name, func(t *testing.T) {
			got, conflicts := instancetype.Expand(templateOf(t, tc.template), nil,
				parse[v1beta1.VirtualMachinePreferenceSpec](t, tc.preference))
			if len(conflicts) > 0 {
				t.Fatalf("conflicts: %v", conflicts)
			}
			want := templateOf(t, tc.want)
			// Features that are empty are the same as none.
			if got.Spec.Domain.Features != nil && want.Spec.Domain.Features == nil &&
				*got.Spec.Domain.Features == (v1.Features{}) {
				got.Spec.Domain.Features = nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// bare is a template without a default interface.
const bare = `{domain: {devices: {autoattachPodInterface: false}}}`

func withDomain(fields string) string {
	return `{domain: {devices: {autoattachPodInterface: false}, ` + fields + `}}`
}

func withDevices(fields string) string {
	return `{domain: {devices: {autoattachPodInterface: false, ` + fields + `}}}`
}

// TestWithoutReferences checks that a VM that refers to nothing has the VMI of its template.
func TestWithoutReferences(t *testing.T) {
	for _, spec := range []string{
		`{domain: {devices: {}}}`,
		`{volumes: [{name: a, emptyDisk: {capacity: 1Gi}}], domain: {devices: {autoattachInputDevice: true}}}`,
		`{a: b};{domain: {devices: {disks: [{name: a}]}, firmware: {bootloader: {}}, cpu: {}}}`,
	} {
		template := templateOf(t, spec)
		got, conflicts := instancetype.Expand(template, nil, nil)
		if diff := cmp.Diff(template, got); diff != "" || conflicts != nil {
			t.Errorf("%s: conflicts %v (-want +got)\n%s", spec, conflicts, diff)
		}
	}
}

// TestDevicesShareNothing checks that a preference for several devices gives each a value of its own.
func TestDevicesShareNothing(t *testing.T) {
	template := templateOf(t, withDevices(`disks: [{name: a}, {name: b}], panicDevices: [{}, {}]`))
	preference := parse[v1beta1.VirtualMachinePreferenceSpec](t, `{devices: {preferredDiskBus: virtio, preferredDiskBlockSize: {custom: {logical: 512}},
		preferredDiskDedicatedIoThread: true, preferredPanicDeviceModel: isa}}`)
	got, _ := instancetype.Expand(template, nil, preference)
	want := got.DeepCopy().Spec.Domain.Devices
	devices := &got.Spec.Domain.Devices
	wreck(&devices.Disks[0])
	wreck(&devices.PanicDevices[0])
	if diff := cmp.Diff(want.Disks[1], devices.Disks[1]) +
		cmp.Diff(want.PanicDevices[1], devices.PanicDevices[1]); diff != "" {
		t.Errorf("a change of the first device changes the second (-want +got)\n%s", diff)
	}
}

// TestProperties checks with random objects that Expand changes no argument, shares nothing with it, and that its
// result needs no further expansion.
func TestProperties(t *testing.T) {
	for seed := range int64(400) {
		random := rand.New(rand.NewSource(seed))
		fill := randfill.New().RandSource(random).NilChance(0.5).NumElements(0, 2).MaxDepth(14).Funcs(
			func(q *resource.Quantity, c randfill.Continue) {
				*q = *resource.NewQuantity(c.Int63n(1<<40), resource.BinarySI)
			},
			func(at *metav1.Time, _ randfill.Continue) { *at = metav1.Time{} },
			func(*metav1.FieldsV1, randfill.Continue) {},
			func(topology *v1beta1.PreferredCPUTopology, c randfill.Continue) {
				*topology = []v1beta1.PreferredCPUTopology{v1beta1.Spread, v1beta1.Cores, "other"}[c.Intn(3)]
			},
			func(across *v1beta1.SpreadAcross, c randfill.Continue) {
				*across = []v1beta1.SpreadAcross{v1beta1.SpreadAcrossCoresThreads, v1beta1.SpreadAcrossSocketsCoresThreads,
					"other"}[c.Intn(3)]
			},
		)
		template := &v1.VirtualMachineInstanceTemplateSpec{}
		size, preference := &v1beta1.VirtualMachineInstancetypeSpec{}, &v1beta1.VirtualMachinePreferenceSpec{}
		if seed%2 == 0 {
			fill.Fill(template) // Most of these conflict with the instance type.
		}
		fill.Fill(size)
		fill.Fill(preference)
		if seed%3 == 0 {
			size = nil
		}
		templateBefore, sizeBefore, preferenceBefore := template.DeepCopy(), size.DeepCopy(), preference.DeepCopy()
		got, _ := instancetype.Expand(template, size, preference)
		again, _ := instancetype.Expand(got, nil, nil)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("seed %d: expanding the result changes it\n%s", seed, diff)
		}
		wreck(got)
		for name, diff := range map[string]string{
			"template": cmp.Diff(templateBefore, template), "instance type": cmp.Diff(sizeBefore, size), "preference": cmp.Diff(preferenceBefore, preference),
		} {
			if diff != "" {
				t.Fatalf("seed %d: the %s was changed, or is a part of the result\n%s", seed, name, diff)
			}
		}
	}
}
