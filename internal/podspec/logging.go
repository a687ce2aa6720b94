// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"strconv"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Labels of a VMI about the log of its launcher. Source: kubevirt/kubevirt pkg/virt-controller/services/renderenvvars.go.
const (
	// LogVerbosityLabel replaces the configured verbosity.
	LogVerbosityLabel = "logVerbosity"
	// DebugLogsLabel adds what libvirtd says for debugging, if it is true in any spelling of upper and lower case.
	DebugLogsLabel = "debugLogs"
)

const (
	// usualVerbosity is the level of KubeVirt's logs at which the launcher's is 0. Source: kubevirt/kubevirt pkg/virt-config,
	// DefaultVirtLauncherLogVerbosity.
	usualVerbosity = 2
	// libvirtVerbosity is the level from which libvirtd's messages for debugging are in the log. Source: kubevirt/kubevirt pkg/util,
	// EXT_LOG_VERBOSITY_THRESHOLD.
	libvirtVerbosity = 5
)

// logLevel is the launcher's log level on KubeVirt's scale: by the VMI's label, if that is a number, and else the cluster's.
func logLevel(vmi *v1.VirtualMachineInstance, cfg Config) uint64 {
	level, err := strconv.ParseUint(vmi.Labels[LogVerbosityLabel], 10, 8)
	if err != nil {
		return uint64(cfg.Verbosity) + usualVerbosity
	}
	return level
}

// libvirtLogFilters are libvirtd's log filters, or empty if its warnings and errors are enough: those of the VMI's annotation, or
// everything but what the level leaves out. The fewest are left out for the label debugLogs. Source: kubevirt/kubevirt
// pkg/virt-launcher/virtwrap/util, GetLibvirtLogFilters.
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
		"3:remote", "4:event", "3:util.json", "3:util.object", "3:util.dbus", "3:util.netlink", "3:node_device", "3:rpc", "3:access",
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
