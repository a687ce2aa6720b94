// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Labels of a VMI that control the log of its launcher. Source: kubevirt/kubevirt
// pkg/virt-controller/services/renderenvvars.go.
const (
	// LogVerbosityLabel replaces the configured verbosity.
	LogVerbosityLabel = "logVerbosity"
	// DebugLogsLabel adds libvirtd's debug messages if it is "true", case-insensitive.
	DebugLogsLabel = "debugLogs"
)

const (
	// usualVerbosity is the level on KubeVirt's scale that is 0 for the launcher. Source: kubevirt/kubevirt
	// pkg/virt-config, DefaultVirtLauncherLogVerbosity.
	usualVerbosity = 2
	// libvirtVerbosity is the lowest level with libvirtd's debug messages. Source: kubevirt/kubevirt pkg/util,
	// EXT_LOG_VERBOSITY_THRESHOLD.
	libvirtVerbosity = 5
)

// logLevel returns the launcher's log level on KubeVirt's scale: that of the VMI's label, if it is a number, or else
// the cluster's.
func logLevel(vmi *v1.VirtualMachineInstance, cfg Config) uint64 {
	level, err := strconv.ParseUint(vmi.Labels[LogVerbosityLabel], 10, 8)
	if err != nil {
		return uint64(cfg.Verbosity) + usualVerbosity
	}
	return level
}

// libvirtLogFilters returns libvirtd's log filters: those of the VMI's annotation, or those of the log level, or "" for
// libvirtd's default, which is warnings and errors. The label debugLogs has the most verbose filters. Source:
// kubevirt/kubevirt pkg/virt-launcher/virtwrap/util, GetLibvirtLogFilters.
func libvirtLogFilters(vmi *v1.VirtualMachineInstance, cfg Config) string {
	if custom := vmi.Annotations[v1.CustomLibvirtLogFiltersAnnotation]; custom != "" {
		return custom
	}
	level := logLevel(vmi, cfg)
	if level < libvirtVerbosity {
		if !strings.EqualFold(vmi.Labels[DebugLogsLabel], yes) {
			return ""
		}
		level = 2 * libvirtVerbosity
	}
	filters := []string{
		"3:remote", "4:event", "3:util.json", "3:util.object", "3:util.dbus", "3:util.netlink", "3:node_device", "3:rpc",
		"3:access",
	}
	for _, quiet := range []struct {
		below   uint64
		filters []string
	}{
		{libvirtVerbosity + 3, []string{"3:util.threadjob", "3:cpu.cpu"}},
		{libvirtVerbosity + 2, []string{"3:qemu.qemu_monitor"}},
		{libvirtVerbosity + 1, []string{"3:qemu.qemu_monitor_json", "3:conf.domain_addr"}},
	} {
		if level < quiet.below {
			filters = append(filters, quiet.filters...)
		}
	}
	return strings.Join(append(filters, "1:*"), " ")
}

// Resources of the console log's container.
const (
	// consoleLogCPURequest and consoleLogCPULimit are KubeVirt's. The limit is set only if it is required, because it also
	// applies to the start of the container, which then takes seconds. Source: kubevirt/kubevirt
	// pkg/virt-controller/services/serialconsolelog.go.
	consoleLogCPURequest = "5m"
	consoleLogCPULimit   = "15m"
	// consoleLogMemory is for virt-tail: 2.0 MiB resident, of which 1.4 MiB are text and data of the program, which all
	// VMs of a node share. It counts against our budget of 128 MiB of overhead for a guest with 1 vCPU and 1 GiB.
	consoleLogMemory = "3Mi"
	// consoleLogMemoryLimit is more than the container runtime needs to start a container.
	consoleLogMemoryLimit = "20Mi"
)

// LogsConsole reports whether the guest has a serial console that is logged. Admission has set the cluster's default.
func LogsConsole(vmi *v1.VirtualMachineInstance) bool {
	devices := &vmi.Spec.Domain.Devices
	return ptr.Deref(devices.AutoattachSerialConsole, true) && ptr.Deref(devices.LogSerialConsole, true)
}

// consoleLog returns the container whose log is the guest's console. It is not a sidecar, because the kubelet starts
// the containers after a sidecar at its next synchronization of the Pod, a second later. virt-tail exits with
// virt-launcher, so that the Pod completes.
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
		// A Pod with a terminated container is not ready. Services must not drop the guest because virt-tail was killed.
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
	override(out.Requests, cfg.ConsoleLogResources.Requests)
	override(out.Limits, cfg.ConsoleLogResources.Limits)
	for name, limit := range out.Limits {
		// Every container of a Guaranteed Pod requests its limits, and none may request more.
		if request, requested := out.Requests[name]; requested && (guaranteed || request.Cmp(limit) > 0) {
			out.Requests[name] = limit
		}
	}
	return out
}

// override replaces quantities. As in KubeVirt, zero keeps the default.
func override(quantities, by corev1.ResourceList) {
	for name, quantity := range by {
		if !quantity.IsZero() {
			quantities[name] = quantity
		}
	}
}

// wantsGuaranteed reports whether the launcher Pod must be Guaranteed: for dedicated CPUs, or if the requests of the
// VMI equal its limits. Source: kubevirt.io/api core/v1/predicates, WantsToHaveQOSGuaranteed.
func wantsGuaranteed(vmi *v1.VirtualMachineInstance) bool {
	resources := &vmi.Spec.Domain.Resources
	same := func(name corev1.ResourceName) bool {
		request, limit := resources.Requests[name], resources.Limits[name]
		return !limit.IsZero() && (request.IsZero() || request.Cmp(limit) == 0)
	}
	return vmi.IsCPUDedicated() || same(corev1.ResourceCPU) && same(corev1.ResourceMemory)
}
