// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

// Whatever a user writes, nothing becomes less by it.
func TestLargeSizesDoNotWrap(t *testing.T) {
	demanded := config()
	demanded.LimitCPU, demanded.LimitMemory, demanded.AdditionalGuestMemoryOverheadRatio = true, true, 10
	for name, change := range map[string]func(*v1.VirtualMachineInstance){
		"reserved overhead": func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Memory.ReservedOverhead = &v1.ReservedOverhead{AddedOverhead: resource.NewQuantity(math.MaxInt64,
				resource.BinarySI)}
		},
		"CPUs": func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU = &v1.CPU{Sockets: math.MaxUint32, Cores: math.MaxUint32, Threads: math.MaxUint32}
			vmi.Spec.Domain.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: ptr.To[uint32](math.MaxUint32)}
		},
		"dedicated CPUs": func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1 << 31, Cores: 1 << 31, Threads: 2, DedicatedCPUPlacement: true,
				IsolateEmulatorThread: true}
		},
		"a memory request": func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(math.MaxInt64,
				resource.BinarySI)}
		},
	} {
		vmi := makeVMI().Guest("1Gi").With(change).Obj()
		usual := podspec.Resources(makeVMI().Guest("1Gi").Obj(), demanded)
		got := podspec.Resources(vmi, demanded)
		for kind, lists := range map[string][2]corev1.ResourceList{"requests": {usual.Requests, got.Requests},
			"limits": {usual.Limits, got.Limits}} {
			for resourceName, least := range lists[0] {
				if now := lists[1][resourceName]; now.Cmp(least) < 0 {
					t.Errorf("%s: it %s %s of %s", name, kind, now.String(), resourceName)
				}
			}
		}
	}
}

func TestMemoryOverhead(t *testing.T) {
	mib := func(vmi *builder.VMI, cfg podspec.Config) int64 {
		q := podspec.MemoryOverhead(vmi.Obj(), cfg)
		return q.Value() >> 20
	}
	beside := func(cfg podspec.Config) int64 {
		pod, err := podspec.Build(makeVMI().Obj(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(-1 << 30)
		for _, container := range pod.Spec.Containers {
			sum += container.Resources.Requests.Memory().Value()
		}
		return sum >> 20
	}
	base := mib(makeVMI(), config())
	emulated := config()
	emulated.UseEmulation = true
	for name, got := range map[string]int64{"KVM": beside(config()), "emulation": beside(emulated)} {
		if got > 128 {
			t.Errorf("with %s, 1 vCPU and 1 GiB need %d MiB, the promise is 128", name, got)
		}
	}
	if more := mib(makeVMI().CPU(4, 1, 1), config()); more <= base {
		t.Error("vCPUs cost nothing")
	}
	if more := mib(makeVMI().Guest("64Gi"), config()); more < base+126 {
		t.Error("page tables cost nothing")
	}
	probed := makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.ReadinessProbe = &v1.Probe{Handler: v1.Handler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
		vmi.Spec.LivenessProbe = &v1.Probe{Handler: v1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(
			22)}}}
	})
	if got := mib(probed, config()); got != base+8 {
		t.Errorf("one probe by the agent: %d MiB, want %d", got, base+8)
	}
	reserved := makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Memory.ReservedOverhead = &v1.ReservedOverhead{AddedOverhead: ptr.To(resource.MustParse("256Mi"))}
	})
	if got := mib(reserved, config()); got != base+256 {
		t.Errorf("reservedOverhead: %d MiB, want %d", got, base+256)
	}
	tpm := makeVMI().With(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{} })
	if got := mib(tpm, config()); got != base+8 {
		t.Errorf("a TPM: %d MiB, want %d", got, base+8)
	}
	noTPM := makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{Enabled: ptr.To(false)}
	})
	if got := mib(noTPM, config()); got != base {
		t.Errorf("a TPM that is off: %d MiB, want %d", got, base)
	}
	doubled := config()
	doubled.AdditionalGuestMemoryOverheadRatio = 2
	if got := mib(makeVMI(), doubled); got != 2*base {
		t.Errorf("ratio 2: %d MiB, want %d", got, 2*base)
	}
}

func TestResources(t *testing.T) {
	overhead := podspec.MemoryOverhead(makeVMI().Obj(), config())
	plus := func(q string, more resource.Quantity) string {
		sum := resource.MustParse(q)
		sum.Add(more)
		return sum.String()
	}
	limited := makeVMI().Limit("memory", "2Gi").Limit("cpu", "50m").Request("memory", "512Mi")
	limitedOverhead := podspec.MemoryOverhead(limited.Obj(), config())
	for name, tc := range map[string]struct {
		vmi              *builder.VMI
		requests, limits map[corev1.ResourceName]string
	}{
		"defaults": {makeVMI(), map[corev1.ResourceName]string{"cpu": "100m", "memory": plus("1Gi", overhead)}, nil},
		"the user's request": {makeVMI().Request("memory", "512Mi").Request("cpu", "2"),
			map[corev1.ResourceName]string{"cpu": "2", "memory": plus("512Mi", overhead)}, nil},
		"limits": {limited,
			map[corev1.ResourceName]string{"cpu": "50m", "memory": plus("512Mi", limitedOverhead)},
			map[corev1.ResourceName]string{"cpu": "50m", "memory": plus("2Gi", limitedOverhead)}},
		"a limit is a request": {makeVMI().Limit("cpu", "2"),
			map[corev1.ResourceName]string{"cpu": "2"}, map[corev1.ResourceName]string{"cpu": "2"}},
		"overcommitted overhead": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Resources.OvercommitGuestOverhead = true
		}), map[corev1.ResourceName]string{"memory": "1Gi"}, nil},
		"I/O threads beside the vCPUs": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: ptr.To[uint32](4)}
		}), map[corev1.ResourceName]string{"cpu": "500m"}, nil},
		"hugepages": {makeVMI().Hugepages("2Mi"),
			map[corev1.ResourceName]string{"hugepages-2Mi": "1Gi", "memory": overhead.String()},
			map[corev1.ResourceName]string{"hugepages-2Mi": "1Gi"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := podspec.Build(tc.vmi.Obj(), config())
			if err != nil {
				t.Fatal(err)
			}
			got := pod.Spec.Containers[0].Resources
			expect(t, "requests", tc.requests, got.Requests)
			expect(t, "limits", tc.limits, got.Limits)
		})
	}
}

func TestDemandedLimits(t *testing.T) {
	demanding := config()
	demanding.LimitCPU, demanding.LimitMemory = true, true
	ratio := func(r float64) podspec.Config {
		cfg := demanding
		cfg.MemoryLimitRatio = r
		return cfg
	}
	overhead := podspec.MemoryOverhead(makeVMI().Obj(), config())
	request := 1<<30 + overhead.Value()
	bytes := func(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }
	for name, tc := range map[string]struct {
		vmi    *builder.VMI
		cfg    podspec.Config
		limits map[corev1.ResourceName]string
	}{
		"nobody demands":       {makeVMI(), config(), map[corev1.ResourceName]string{"cpu": "0"}},
		"both":                 {makeVMI().CPU(1, 2, 1), demanding, map[corev1.ResourceName]string{"cpu": "2", "memory": bytes(2 * (request + 3<<20))}},
		"a ratio":              {makeVMI(), ratio(1.5), map[corev1.ResourceName]string{"memory": bytes(request * 3 / 2)}},
		"room for a peak":      {makeVMI(), ratio(1), map[corev1.ResourceName]string{"memory": bytes(request + 100<<20)}},
		"a ratio out of range": {makeVMI(), ratio(0.5), map[corev1.ResourceName]string{"memory": bytes(2 * request)}},
		"the request is more":  {makeVMI().Request("cpu", "3"), demanding, map[corev1.ResourceName]string{"cpu": "3", "memory": bytes(2 * request)}},
		"the VMI's own": {makeVMI().Limit("cpu", "500m").Limit("memory", "2Gi"), demanding,
			map[corev1.ResourceName]string{"cpu": "500m", "memory": bytes(2<<30 + overhead.Value() + 100<<20)}},
	} {
		t.Run(name, func(t *testing.T) {
			pod, err := podspec.Build(tc.vmi.Obj(), tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			expect(t, "limits", tc.limits, pod.Spec.Containers[0].Resources.Limits)
			for _, container := range pod.Spec.Containers {
				for _, resource := range []corev1.ResourceName{"cpu", "memory"} {
					if _, limited := container.Resources.Limits[resource]; tc.cfg.LimitCPU && !limited {
						t.Errorf("container %s has no limit of %s", container.Name, resource)
					}
				}
			}
		})
	}
}

func TestDedicatedCPUs(t *testing.T) {
	even := func(vmi *builder.VMI) *builder.VMI { return vmi.Annotation(v1.EmulatorThreadCompleteToEvenParity, "") }
	isolated := func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU.IsolateEmulatorThread = true }
	pool := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.IOThreads = &v1.DiskIOThreads{SupplementalPoolThreadCount: ptr.To[uint32](3)}
	}
	for name, tc := range map[string]struct {
		vmi  *builder.VMI
		want string
	}{
		"one for each vCPU":                {makeVMI().CPU(2, 2, 1), "4"},
		"one for the emulator":             {makeVMI().CPU(1, 2, 1).With(isolated), "3"},
		"two for an even number":           {even(makeVMI().CPU(1, 2, 1).With(isolated)), "4"},
		"one makes it even":                {even(makeVMI().CPU(1, 3, 1).With(isolated)), "4"},
		"even without an emulator's own":   {even(makeVMI().CPU(1, 3, 1)), "3"},
		"the I/O threads' own":             {makeVMI().CPU(1, 2, 1).With(pool), "5"},
		"I/O threads, emulator and parity": {even(makeVMI().CPU(1, 1, 1).With(pool).With(isolated)), "6"},
		"no topology":                      {makeVMI().CPU(0, 0, 0).Limit("cpu", "6"), "6"},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := tc.vmi.With(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU.DedicatedCPUPlacement = true }).Limit(
				"memory", "2Gi")
			overcommitted := config()
			overcommitted.MemoryOvercommit = 200
			pod, err := podspec.Build(vmi.Obj(), overcommitted)
			if err != nil {
				t.Fatal(err)
			}
			got := pod.Spec.Containers[0].Resources
			if cpus := got.Requests.Cpu().String(); cpus != tc.want {
				t.Errorf("%s CPUs, want %s", cpus, tc.want)
			}
			// The Pod is Guaranteed.
			if got.Requests.Cpu().Cmp(*got.Limits.Cpu()) != 0 || got.Requests.Memory().Cmp(*got.Limits.Memory()) != 0 ||
				got.Requests.Memory().Value() < 2<<30 {
				t.Errorf("requests %v, limits %v", got.Requests, got.Limits)
			}
		})
	}
}

func expect(t *testing.T, what string, want map[corev1.ResourceName]string, got corev1.ResourceList) {
	t.Helper()
	for name, quantity := range want {
		have := got[name]
		if have.Cmp(resource.MustParse(quantity)) != 0 {
			t.Errorf("%s.%s is %s, want %s", what, name, have.String(), quantity)
		}
	}
	if _, limited := got["memory"]; what == "limits" && limited && want["memory"] == "" {
		t.Error("memory has a limit")
	}
}
