// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// What the container with the guest's console asks for.
const (
	// consoleLogCPURequest and consoleLogCPULimit are KubeVirt's. The limit is set only where one must be: the container runtime
	// starts the container under it, which takes seconds then.
	// Source: kubevirt/kubevirt pkg/virt-controller/services/serialconsolelog.go.
	consoleLogCPURequest = "5m"
	consoleLogCPULimit   = "15m"
	// consoleLogMemory is what virt-tail needs: 2.0 MiB resident, of which 1.4 are text and data of the program, which all VMs of a
	// node share. It is a part of the 128 MiB that a guest with 1 vCPU and 1 GiB may cost.
	consoleLogMemory = "3Mi"
	// consoleLogMemoryLimit is what the container runtime needs to start a container at all, with room.
	consoleLogMemoryLimit = "20Mi"
)

// LogsConsole says that the guest has a serial console and that it is to be logged. Admission has resolved the cluster's default.
func LogsConsole(vmi *v1.VirtualMachineInstance) bool {
	devices := &vmi.Spec.Domain.Devices
	return ptr.Deref(devices.AutoattachSerialConsole, true) && ptr.Deref(devices.LogSerialConsole, true)
}

// consoleLog is the container whose log is the guest's console. It is no sidecar, as the kubelet starts what comes after a sidecar
// only when it next looks at the Pod: a second later. virt-tail ends with virt-launcher, so that the Pod completes.
func consoleLog(vmi *v1.VirtualMachineInstance, cfg Config) corev1.Container {
	security := containerSecurity(vmi)
	security.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{allCapabilities}}
	container := corev1.Container{
		Name:            launcherpod.ConsoleLogContainer,
		Image:           cfg.LauncherImage,
		ImagePullPolicy: cfg.ImagePullPolicy,
		Command:         []string{launcherpod.TailBinary},
		Args:            []string{launcherpod.ConsoleLogFIFO},
		Resources:       consoleLogResources(vmi, cfg),
		SecurityContext: security,
		VolumeMounts:    []corev1.VolumeMount{{Name: launcherpod.ConsoleLogVolume, MountPath: launcherpod.ConsoleLogDir}},
	}
	if cfg.RestartsContainers {
		// A Pod with a container that has ended is not ready: a log that was killed for a node's memory must not cost the guest its
		// Services.
		container.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyOnFailure)
	}
	return container
}

func consoleLogResources(vmi *v1.VirtualMachineInstance, cfg Config) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(consoleLogCPURequest),
			corev1.ResourceMemory: resource.MustParse(consoleLogMemory),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(consoleLogMemoryLimit)},
	}
	guaranteed := wantsGuaranteed(vmi)
	if guaranteed || cfg.LimitCPU {
		out.Limits[corev1.ResourceCPU] = resource.MustParse(consoleLogCPULimit)
	}
	maps.Copy(out.Requests, cfg.ConsoleLogResources.Requests)
	maps.Copy(out.Limits, cfg.ConsoleLogResources.Limits)
	for name, limit := range out.Limits {
		// Every container of a Guaranteed Pod requests its limits, and none may request more.
		if request, asked := out.Requests[name]; asked && (guaranteed || request.Cmp(limit) > 0) {
			out.Requests[name] = limit
		}
	}
	return out
}

// wantsGuaranteed says that the launcher's Pod is to be Guaranteed: for dedicated CPUs, or as the VMI requests what its limits are.
// Source: kubevirt.io/api core/v1/predicates, WantsToHaveQOSGuaranteed.
func wantsGuaranteed(vmi *v1.VirtualMachineInstance) bool {
	resources := &vmi.Spec.Domain.Resources
	same := func(name corev1.ResourceName) bool {
		request, limit := resources.Requests[name], resources.Limits[name]
		return !limit.IsZero() && (request.IsZero() || request.Cmp(limit) == 0)
	}
	return vmi.IsCPUDedicated() || same(corev1.ResourceCPU) && same(corev1.ResourceMemory)
}
