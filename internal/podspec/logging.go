// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"strconv"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Labels of a VMI that control the log of its launcher. Source: kubevirt/kubevirt pkg/virt-controller/services/renderenvvars.go.
const (
	// LogVerbosityLabel replaces the configured verbosity.
	LogVerbosityLabel = "logVerbosity"
	// DebugLogsLabel adds libvirtd's debug messages if it is "true", case-insensitive.
	DebugLogsLabel = "debugLogs"
)

const (
	// usualVerbosity is the level on KubeVirt's scale that is 0 for the launcher. Source: kubevirt/kubevirt pkg/virt-config,
	// DefaultVirtLauncherLogVerbosity.
	usualVerbosity = 2
	// libvirtVerbosity is the lowest level with libvirtd's debug messages. Source: kubevirt/kubevirt pkg/util,
	// EXT_LOG_VERBOSITY_THRESHOLD.
	libvirtVerbosity = 5
)

// logLevel returns the launcher's log level on KubeVirt's scale: that of the VMI's label, if it is a number, or else the
// cluster's.
func logLevel(vmi *v1.VirtualMachineInstance, cfg Config) uint64 {
	level, err := strconv.ParseUint(vmi.Labels[LogVerbosityLabel], 10, 8)
	if err != nil {
		return uint64(cfg.Verbosity) + usualVerbosity
	}
	return level
}

// libvirtLogFilters returns libvirtd's log filters: those of the VMI's annotation, or those of the log level, or "" for
// libvirtd's default, which is warnings and errors. The label debugLogs has the most verbose filters. Source: kubevirt/kubevirt
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
