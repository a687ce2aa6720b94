// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/test/builder"
)

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
	if got := consoleLogOf(t, makeVMI(), able).RestartPolicy; got == nil || *got != corev1.ContainerRestartPolicyOnFailure {
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
			if cpu, limit := got.Requests[corev1.ResourceCPU], got.Limits[corev1.ResourceCPU]; cpu.String() != tc.cpu || limit.String() != tc.limit {
				t.Errorf("cpu %s of %s, want %s of %s", cpu.String(), limit.String(), tc.cpu, tc.limit)
			}
			if memory, limit := got.Requests[corev1.ResourceMemory], got.Limits[corev1.ResourceMemory]; (memory.Cmp(limit) == 0) != tc.guaranteed {
				t.Errorf("memory %s of %s", memory.String(), limit.String())
			}
		})
	}
}
