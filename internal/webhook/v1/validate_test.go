// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// ruleCase is a spec and the faults that it must have: exactly these, each as "path: part of the message".
type ruleCase struct {
	name   string
	config *v1.KubeVirtConfiguration
	spec   *v1.VirtualMachineInstanceSpec
	want   []string
}

func runRules(t *testing.T, cases []ruleCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			config := clusterconfig.Default()
			if tc.config != nil {
				var err error
				if config, err = clusterconfig.FromKubeVirt(
					&v1.KubeVirt{Spec: v1.KubeVirtSpec{Configuration: *tc.config}}); err != nil {
					t.Fatal(err)
				}
			}
			expectFaults(t, validateSpec(field.NewPath("spec"), tc.spec, config), tc.want)
		})
	}
}

// expectFaults compares faults with "path: part of the message", in any order, none missing and none too many.
func expectFaults(t *testing.T, got field.ErrorList, want []string) {
	t.Helper()
	rest := slices.Clone(got)
	for _, w := range want {
		path, message, _ := strings.Cut(w, ": ")
		i := slices.IndexFunc(rest, func(e *field.Error) bool {
			return e.Field == path && strings.Contains(e.Error(), message)
		})
		if i < 0 {
			t.Errorf("missing fault %q in %v", w, got)
			continue
		}
		rest = slices.Delete(rest, i, i+1)
	}
	for _, e := range rest {
		t.Errorf("unexpected fault: %v", e)
	}
}

func cpuSpec(cpu v1.CPU, options ...specOption) *v1.VirtualMachineInstanceSpec {
	return newSpec(append([]specOption{func(s *v1.VirtualMachineInstanceSpec) { s.Domain.CPU = &cpu }}, options...)...)
}

func withResources(requests, limits [2]string) specOption {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Resources.Requests = resources(requests[0], requests[1])
		s.Domain.Resources.Limits = resources(limits[0], limits[1])
	}
}

func withHugepages(size, guest string) specOption {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Memory = &v1.Memory{Hugepages: &v1.Hugepages{PageSize: size}}
		if guest != "" {
			s.Domain.Memory.Guest = quantityOf(guest)
		}
	}
}

func TestCPURules(t *testing.T) {
	dedicated := v1.CPU{DedicatedCPUPlacement: true, Cores: 2}
	runRules(t, []ruleCase{
		{name: "topology", spec: cpuSpec(v1.CPU{Sockets: 2, Cores: 2, Threads: 2, MaxSockets: 4, Model: "Haswell",
			Features: []v1.CPUFeature{{Name: "avx"}, {Name: "sse", Policy: "disable"}}})},
		{name: "feature policy", spec: cpuSpec(v1.CPU{Features: []v1.CPUFeature{{Name: "avx", Policy: "maybe"}}}),
			want: []string{"spec.domain.cpu.features[0].policy: not supported"}},
		{name: "more sockets than there may be", spec: cpuSpec(v1.CPU{Sockets: 3, MaxSockets: 2}),
			want: []string{"spec.domain.cpu.sockets: greater than the maximum sockets allowed"}},
		{name: "isolated thread alone", spec: cpuSpec(v1.CPU{IsolateEmulatorThread: true}),
			want: []string{"spec.domain.cpu.isolateEmulatorThread: only set in combination with DedicatedCPUPlacement"}},
		{name: "dedicated", spec: cpuSpec(dedicated, withResources([2]string{"2", "1Gi"}, [2]string{"2", "1Gi"}))},
		{name: "dedicated with the guest's memory", spec: cpuSpec(dedicated)},
		{name: "dedicated with different sizes", spec: cpuSpec(v1.CPU{DedicatedCPUPlacement: true},
			withResources([2]string{"1", "1Gi"}, [2]string{"2", "2Gi"})), want: []string{
			"spec.domain.resources.requests.memory: must be equal to",
			"spec.domain.cpu.dedicatedCpuPlacement: must be equal when DedicatedCPUPlacement",
		}},
		{name: "dedicated with parts of CPUs", spec: cpuSpec(v1.CPU{DedicatedCPUPlacement: true},
			withResources([2]string{"1500m", "1Gi"}, [2]string{"1500m", "1Gi"})), want: []string{
			"spec.domain.resources.requests.cpu: must be an interger", "spec.domain.resources.limits.cpu: must be an interger",
		}},
		{name: "dedicated without a number", spec: cpuSpec(v1.CPU{DedicatedCPUPlacement: true},
			withResources([2]string{"", "1Gi"}, [2]string{"", ""})),
			want: []string{"spec.domain.cpu.dedicatedCpuPlacement: must be provided"}},
		{name: "dedicated with two numbers", spec: cpuSpec(dedicated, withResources([2]string{"3", "1Gi"}, [2]string{"3", "1Gi"})),
			want: []string{"spec.domain.cpu.dedicatedCpuPlacement: at the same time"}},
		{name: "dedicated with three threads", spec: cpuSpec(v1.CPU{DedicatedCPUPlacement: true, Threads: 3},
			withResources([2]string{"", "1Gi"}, [2]string{"", ""})),
			want: []string{"spec.domain.cpu.dedicatedCpuPlacement: Not more than two threads"}},
		{name: "numa alone", spec: cpuSpec(v1.CPU{NUMA: &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}}}),
			want: []string{
				"spec.domain.cpu.numa.guestMappingPassthrough: dedicatedCpuPlacement must be set",
				"spec.domain.cpu.numa.guestMappingPassthrough: hugepages must be requested",
			}},
		{name: "realtime alone", spec: cpuSpec(v1.CPU{Realtime: &v1.Realtime{}}), want: []string{
			"spec.domain.cpu.dedicatedCpuPlacement: must be set to true",
			"spec.domain.cpu.numa.guestMappingPassthrough: must be defined",
		}},
		{name: "requests beyond limits", spec: newSpec(withResources([2]string{"2", "2Gi"}, [2]string{"1", "1Gi"})), want: []string{
			"spec.domain.resources.requests.cpu: '2' is greater than",
			"spec.domain.resources.requests.memory: '2Gi' is greater than",
		}},
		{name: "negative", spec: newSpec(withResources([2]string{"-1", "-1"}, [2]string{"-1", "-1"})), want: []string{
			"spec.domain.resources.requests.cpu: greater than or equal to 0",
			"spec.domain.resources.limits.cpu: greater than or equal to 0",
			"spec.domain.resources.requests.memory: greater than or equal to 0",
			"spec.domain.resources.limits.memory: greater than or equal to 0",
		}},
	})
}

func TestMemoryRules(t *testing.T) {
	runRules(t, []ruleCase{
		{name: "fits", spec: newSpec(withResources([2]string{"", "64Mi"}, [2]string{"", "256Mi"}))},
		{name: "tiny request", spec: newSpec(withResources([2]string{"", "1k"}, [2]string{"", ""})),
			want: []string{"spec.domain.resources.requests.memory: greater than or equal to 1M"}},
		{name: "guest beyond a limit that grows", spec: newSpec(withResources([2]string{"", ""}, [2]string{"", "64Mi"}))},
		{name: "guest beyond limit", spec: newSpec(withResources([2]string{"", ""}, [2]string{"", "64Mi"})),
			config: &v1.KubeVirtConfiguration{VMRolloutStrategy: ptr.To(v1.VMRolloutStrategyStage)},
			want:   []string{"spec.domain.memory.guest: equal to or less than the memory limit"}},
		{name: "huge pages", spec: newSpec(withHugepages("2Mi", "64Mi"))},
		{name: "huge pages without a number", spec: newSpec(withHugepages("big", "64Mi")),
			want: []string{"spec.domain.memory.hugepages.pageSize: must be a size"}},
		{name: "less than a huge page", spec: newSpec(withHugepages("1Gi", "64Mi")),
			want: []string{"spec.domain.memory.guest: equal to or larger than page size"}},
		{name: "not a multiple", spec: newSpec(withHugepages("2Mi", "63Mi")),
			want: []string{"spec.domain.memory.guest: not a multiple of the page size"}},
	})
}

func TestFirmwareRules(t *testing.T) {
	firmware := func(fw v1.Firmware, options ...specOption) *v1.VirtualMachineInstanceSpec {
		return newSpec(append(options, func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Firmware = &fw })...)
	}
	smm := func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Features = &v1.Features{SMM: &v1.FeatureState{}} }
	machine := func(name string) *v1.VirtualMachineInstanceSpec {
		return newSpec(func(s *v1.VirtualMachineInstanceSpec) {
			s.Architecture = "amd64"
			s.Domain.Machine = &v1.Machine{Type: name}
		})
	}
	kernel := func(boot v1.KernelBoot) *v1.VirtualMachineInstanceSpec {
		return firmware(v1.Firmware{KernelBoot: &boot})
	}
	runRules(t, []ruleCase{
		{name: "q35", spec: machine("pc-q35-10.0")},
		{name: "i440fx", spec: machine("pc-i440fx-10.0"), want: []string{"spec.domain.machine.type: allowed values: [q35* pc-q35*]"}},
		{name: "machine that the cluster allows", spec: machine("microvm"),
			config: &v1.KubeVirtConfiguration{EmulatedMachines: []string{"microvm"}}},
		{name: "efi with secure boot", spec: firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}}}, smm)},
		{name: "efi without secure boot", spec: firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false)}}})},
		{name: "secure boot without smm", spec: firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}}}),
			want: []string{"spec.domain.firmware.bootloader.efi.secureBoot: SecureBoot requires SMM"}},
		{name: "both loaders", spec: firmware(v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}, BIOS: &v1.BIOS{}}}, smm),
			want: []string{"spec.domain.firmware.bootloader: mutually exclusive"}},
		{name: "serial", spec: firmware(v1.Firmware{Serial: "e4686d2c-6e8d_4335.8f+d"})},
		{name: "serial of vSphere", spec: firmware(v1.Firmware{Serial: "VMware-42 1f 2b 7c b0 9d 86 4e-1a 5f 0d 6c 9e 3b 77 21"})},
		{name: "any serial", spec: firmware(v1.Firmware{Serial: "$, <é>" + strings.Repeat("x", 256)})},
		{name: "acpi tables", spec: firmware(v1.Firmware{ACPI: &v1.ACPI{SlicNameRef: "v", MsdmNameRef: "v"}},
			withVolume("v", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}))},
		{name: "no acpi table", spec: firmware(v1.Firmware{ACPI: &v1.ACPI{}}),
			want: []string{"spec.domain.firmware.acpi: no SLIC nor MSDM volume reference"}},
		{name: "acpi tables elsewhere", spec: firmware(v1.Firmware{ACPI: &v1.ACPI{SlicNameRef: "v", MsdmNameRef: "w"}},
			withVolume("v", *containerDisk())), want: []string{
			"spec.domain.firmware.acpi.slicNameRef: unsupported type",
			"spec.domain.firmware.acpi.msdmNameRef: does not have a matching Volume",
		}},
		{name: "kernel", spec: kernel(v1.KernelBoot{KernelArgs: "quiet", Container: &v1.KernelBootContainer{
			Image: "img", KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd"}})},
		{name: "arguments without a kernel", spec: kernel(v1.KernelBoot{KernelArgs: "quiet"}),
			want: []string{"spec.domain.firmware.kernelBoot.kernelArgs: without an external kernel"}},
		{name: "kernel without anything", spec: kernel(v1.KernelBoot{Container: &v1.KernelBootContainer{}}), want: []string{
			"spec.domain.firmware.kernelBoot.container.image: with an image",
			"spec.domain.firmware.kernelBoot.container: at least one of the following: kernelPath, initrdPath",
		}},
		{name: "odd paths", spec: kernel(v1.KernelBoot{Container: &v1.KernelBootContainer{
			Image: "img", KernelPath: "/", InitrdPath: "/boot/../etc/passwd"}}), want: []string{
			"spec.domain.firmware.kernelBoot.container.kernelPath: must not point to root",
			"spec.domain.firmware.kernelBoot.container.initrdPath: without relative components",
		}},
	})
}

func TestPlacementRules(t *testing.T) {
	set := func(f func(*v1.VirtualMachineInstanceSpec)) *v1.VirtualMachineInstanceSpec { return newSpec(f) }
	runRules(t, []ruleCase{
		{name: "foreign architecture", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "s390x" }),
			want: []string{"spec.architecture: multi-architecture feature gate"}},
		{name: "foreign architecture by gate", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.Architecture = "s390x" }),
			config: &v1.KubeVirtConfiguration{
				DeveloperConfiguration: &v1.DeveloperConfiguration{FeatureGates: []string{"MultiArchitecture"}}}},
		{name: "names", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.Hostname, s.Subdomain = "web", "a.b" })},
		{name: "bad names", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.Hostname, s.Subdomain = "w.b", "A" }), want: []string{
			"spec.hostname: DNS_LABEL", "spec.subdomain: DNS_SUBDOMAIN",
		}},
		{name: "no dns", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.DNSPolicy = "None" }),
			want: []string{"spec.dnsConfig: must provide `dnsConfig`"}},
		{name: "unknown dns", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.DNSPolicy = "Sometimes" }),
			want: []string{"spec.dnsPolicy: not supported"}},
		{name: "negative grace", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.TerminationGracePeriodSeconds = ptr.To(int64(-1)) }),
			want: []string{"spec.terminationGracePeriodSeconds: greater than or equal to 0"}},
		{name: "paused", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.StartStrategy = ptr.To(v1.StartStrategyPaused) })},
		{name: "unknown start", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.StartStrategy = ptr.To(v1.StartStrategy("Slow")) }),
			want: []string{"spec.startStrategy: unrecognized option"}},
		{name: "unknown eviction", spec: set(func(s *v1.VirtualMachineInstanceSpec) { s.EvictionStrategy = ptr.To(v1.EvictionStrategy("Hide")) }),
			want: []string{"spec.evictionStrategy: unrecognized option"}},
	})
}

// A user determines how many errors there are: a million of three bytes each fit into a request.
func TestErrorsThatAreNotListedTakeLittleMemory(t *testing.T) {
	const faults = 1_000_000
	spec := &newVMI("vmi").Spec
	spec.DNSConfig = &corev1.PodDNSConfig{Options: make([]corev1.PodDNSConfigOption, faults)}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	errs := validateSpec(field.NewPath("spec"), spec, clusterconfig.Default())
	runtime.GC()
	runtime.ReadMemStats(&after)
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 32<<20 {
		t.Errorf("%d errors take %d MiB", len(errs), kept>>20)
	}
	if len(errs) < faults {
		t.Errorf("%d errors are counted, want %d", len(errs), faults)
	}
	runtime.KeepAlive(errs)
}

// padded returns a spec with so many bytes in a field that has no limit.
func padded(bytes int) specOption {
	return func(spec *v1.VirtualMachineInstanceSpec) {
		spec.NodeSelector = map[string]string{"pad": strings.Repeat("x", bytes)}
	}
}

func newSet(bytes int) *v1.VirtualMachineInstanceReplicaSet {
	labels := map[string]string{"app": "set"}
	set := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "set",
		Namespace: metav1.NamespaceDefault}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	set.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: *newSpec(padded(bytes))}
	return set
}

func TestObjectsOfTenantsAreLimited(t *testing.T) {
	config := fixedConfig{clusterconfig.Default()}
	config.DefaultArchitecture = clusterconfig.ArchAMD64
	trusted := sets.New("virt-controller")
	vm := &vmValidator{config: config, trusted: trusted, finder: readers()}
	vmi := &vmiValidator{config: config, trusted: trusted}
	pool, set := &poolValidator{config: config}, &replicaSetValidator{config: config}
	by := func(user string) context.Context {
		return admission.NewContextWithRequest(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
			UserInfo: authenticationv1.UserInfo{Username: user},
		}})
	}
	for name, tc := range map[string]struct {
		limit  int
		create func(ctx context.Context, bytes int) error
		// update changes an object of some bytes.
		update func(ctx context.Context, before, after int) error
		// trusted reports whether virt-controller may create a larger one.
		trusted bool
	}{
		"VM": {maxSpec, func(ctx context.Context, bytes int) error {
			_, err := vm.ValidateCreate(ctx, newVM("vm", padded(bytes)))
			return err
		}, func(ctx context.Context, before, after int) error {
			_, err := vm.ValidateUpdate(ctx, newVM("vm", padded(before)), newVM("vm", padded(after)))
			return err
		}, true},
		"VMI": {maxSpec, func(ctx context.Context, bytes int) error {
			_, err := vmi.ValidateCreate(ctx, newVMI("vmi", padded(bytes)))
			return err
		}, nil, true},
		"pool": {maxTemplate, func(ctx context.Context, bytes int) error {
			_, err := pool.ValidateCreate(ctx, newPool("pool", padded(bytes)))
			return err
		}, func(ctx context.Context, before, after int) error {
			_, err := pool.ValidateUpdate(ctx, newPool("pool", padded(before)), newPool("pool", padded(after)))
			return err
		}, false},
		"replica set": {maxTemplate, func(ctx context.Context, bytes int) error {
			_, err := set.ValidateCreate(ctx, newSet(bytes))
			return err
		}, func(ctx context.Context, before, after int) error {
			_, err := set.ValidateUpdate(ctx, newSet(before), newSet(after))
			return err
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			small, large := tc.limit*9/10, tc.limit
			if err := tc.create(by("tenant"), small); err != nil {
				t.Error(err)
			}
			if err := tc.create(by("tenant"), large); err == nil || !strings.Contains(err.Error(), "may not be more than") {
				t.Errorf("a large one: %v", err)
			}
			if err := tc.create(by("virt-controller"), large); (err == nil) != tc.trusted {
				t.Errorf("a large one by virt-controller: %v", err)
			}
			if tc.update == nil {
				return
			}
			if err := tc.update(by("tenant"), small, large); err == nil {
				t.Error("one became too large")
			}
			if err := tc.update(by("tenant"), large, large+1); err != nil {
				t.Errorf("a large one from an earlier version cannot be changed: %v", err)
			}
		})
	}
}
