// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

func TestLogVerbosityLabel(t *testing.T) {
	for _, tc := range []struct {
		label   string
		cluster uint
		want    string
	}{
		{"", 0, ""}, {"", 3, "3"}, {"2", 3, ""}, {"0", 3, ""}, {"6", 0, "4"}, {"6", 3, "4"}, {"loud", 3, "3"}, {"-1", 3, "3"},
	} {
		vmi, cfg := makeVMI(), config()
		cfg.Verbosity = tc.cluster
		if tc.label != "" {
			vmi = vmi.Label(podspec.LogVerbosityLabel, tc.label)
		}
		pod, err := podspec.Build(vmi.Obj(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := argument(pod, "--v"); got != tc.want {
			t.Errorf("label %q where the cluster has %d: --v %q, want %q", tc.label, tc.cluster, got, tc.want)
		}
	}
}

// argument returns the value of a flag of the launcher, or "".
func argument(pod *corev1.Pod, flag string) string {
	arguments := slices.Concat(pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args)
	if i := slices.Index(arguments, flag); i >= 0 {
		return arguments[i+1]
	}
	return ""
}

func TestLibvirtLogFilters(t *testing.T) {
	const (
		least  = "3:remote 4:event 3:util.json 3:util.object 3:util.dbus 3:util.netlink 3:node_device 3:rpc 3:access"
		custom = "1:qemu 3:rpc"
	)
	for name, tc := range map[string]struct {
		debug, level, annotation string
		cluster                  uint
		want                     string
	}{
		"nothing":                        {},
		"the label":                      {debug: "true", want: least + " 1:*"},
		"the label in other letters":     {debug: "TRuE", want: least + " 1:*"},
		"the label off":                  {debug: "false"},
		"another value":                  {debug: "1"},
		"a level below":                  {level: "4"},
		"a level of 5":                   {level: "5", want: least + " 3:util.threadjob 3:cpu.cpu 3:qemu.qemu_monitor 3:qemu.qemu_monitor_json 3:conf.domain_addr 1:*"},
		"a level of 6":                   {level: "6", want: least + " 3:util.threadjob 3:cpu.cpu 3:qemu.qemu_monitor 1:*"},
		"a level of 7":                   {level: "7", want: least + " 3:util.threadjob 3:cpu.cpu 1:*"},
		"a level of 8":                   {level: "8", want: least + " 1:*"},
		"the level goes before":          {debug: "true", level: "7", want: least + " 3:util.threadjob 3:cpu.cpu 1:*"},
		"a low level with the label":     {debug: "true", level: "1", want: least + " 1:*"},
		"the cluster's level":            {cluster: 6, want: least + " 1:*"},
		"the label replaces the cluster": {cluster: 6, level: "2"},
		"filters of one's own":           {debug: "true", level: "9", annotation: custom, want: custom},
	} {
		t.Run(name, func(t *testing.T) {
			vmi, cfg := makeVMI().Obj(), config()
			cfg.Verbosity = tc.cluster
			for key, value := range map[string]string{podspec.DebugLogsLabel: tc.debug, podspec.LogVerbosityLabel: tc.level} {
				if value != "" {
					metav1.SetMetaDataLabel(&vmi.ObjectMeta, key, value)
				}
			}
			if tc.annotation != "" {
				metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.CustomLibvirtLogFiltersAnnotation, tc.annotation)
			}
			pod, err := podspec.Build(vmi, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := argument(pod, "--libvirt-log-filters"); got != tc.want {
				t.Errorf("got  %q\nwant %q", got, tc.want)
			}
		})
	}
}

func consoleLogOf(t *testing.T, vmi *builder.VMI, cfg podspec.Config) *corev1.Container {
	t.Helper()
	pod, err := podspec.Build(vmi.Obj(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == launcherpod.ConsoleLogContainer {
			return &pod.Spec.Containers[i]
		}
	}
	return nil
}

func TestConsoleLogContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		attach, log *bool
		want        bool
	}{
		"by default":       {nil, nil, true},
		"requested":        {nil, ptr.To(true), true},
		"not to be logged": {nil, ptr.To(false), false},
		"no console":       {ptr.To(false), ptr.To(true), false},
	} {
		t.Run(name, func(t *testing.T) {
			vmi := makeVMI().With(func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Domain.Devices.AutoattachSerialConsole, vmi.Spec.Domain.Devices.LogSerialConsole = tc.attach, tc.log
			})
			if got := consoleLogOf(t, vmi, config()) != nil; got != tc.want {
				t.Errorf("there is one: %t, want %t", got, tc.want)
			}
			pod, err := podspec.Build(vmi.Obj(), config())
			if err != nil {
				t.Fatal(err)
			}
			mounted := false
			for _, m := range pod.Spec.Containers[0].VolumeMounts {
				mounted = mounted || m.MountPath == launcherpod.ConsoleLogDir
			}
			if mounted != tc.want {
				t.Errorf("virt-launcher has the pipe's directory: %t, want %t", mounted, tc.want)
			}
		})
	}
}

func TestConsoleLogIsRestarted(t *testing.T) {
	if got := consoleLogOf(t, makeVMI(), config()).RestartPolicy; got != nil {
		t.Errorf("an older API server refuses %q", *got)
	}
	able := config()
	able.RestartsContainers = true
	if got := consoleLogOf(t, makeVMI(), able).RestartPolicy; got == nil ||
		*got != corev1.ContainerRestartPolicyOnFailure {
		t.Errorf("got %v: with Always the Pod would never complete", got)
	}
}

func TestConsoleLogKeepsAPodGuaranteed(t *testing.T) {
	own := config()
	own.ConsoleLogResources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("30m")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m")},
	}
	for name, tc := range map[string]struct {
		vmi        *builder.VMI
		cfg        podspec.Config
		cpu, limit string
		guaranteed bool
	}{
		"burstable":      {makeVMI(), config(), "5m", "0", false},
		"configured":     {makeVMI(), own, "20m", "20m", false},
		"dedicated CPUs": {makeVMI().With(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{DedicatedCPUPlacement: true} }), config(), "15m", "15m", true},
		"limits are requests": {makeVMI().Request("cpu", "1").Request("memory", "1Gi").Limit("cpu", "1").Limit("memory", "1Gi"),
			config(), "15m", "15m", true},
		"limits without requests":   {makeVMI().Limit("cpu", "1").Limit("memory", "1Gi"), config(), "15m", "15m", true},
		"limits beyond the request": {makeVMI().Request("cpu", "1").Limit("cpu", "2").Limit("memory", "1Gi"), config(), "5m", "0", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := consoleLogOf(t, tc.vmi, tc.cfg).Resources
			if cpu, limit := got.Requests[corev1.ResourceCPU], got.Limits[corev1.ResourceCPU]; cpu.String() != tc.cpu ||
				limit.String() != tc.limit {
				t.Errorf("cpu %s of %s, want %s of %s", cpu.String(), limit.String(), tc.cpu, tc.limit)
			}
			if memory, limit := got.Requests[corev1.ResourceMemory],
				got.Limits[corev1.ResourceMemory]; (memory.Cmp(limit) == 0) != tc.guaranteed {
				t.Errorf("memory %s of %s", memory.String(), limit.String())
			}
		})
	}
}
