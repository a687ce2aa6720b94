// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rules

// noSpace are the types of file systems that are full by design, or that use no disk.
const noSpace = "CDFS|iso9660|udf|squashfs|cramfs|tmpfs|devtmpfs|proc|sysfs|selinuxfs|securityfs|pstore|debugfs|tracefs|configfs|binfmt_misc|" +
	"bpf|devpts|mqueue|nsfs|rpc_pipefs|ramfs|rootfs|overlay|cgroup.*|fuse[.].*|fusectl"

// guestAlerts are about VMs and their guests. They have no impact on the installation.
func guestAlerts() []alert {
	return append(append(lifecycleAlerts(), memoryAlerts()...), spaceAlerts()...)
}

func lifecycleAlerts() []alert {
	// A VMI has two series for a moment, if its labels change.
	running := "topk by(name, namespace) (1, kubevirt_vmi_info{phase='running'})"
	started := "topk by(name, namespace) (1, kubevirt_vmi_info{phase=~'scheduled|running'})"
	queue := "vmi:kubevirt_vmi_guest_queue_length:sum > "
	return []alert{
		{
			"VMCannotBeEvicted", "kubevirt_vmi_non_evictable * on(name, namespace) group_left() " + running + " == 1", "1m",
			warning, none, "A VMI has to be migrated when its node is drained, and cannot be.",
			"VMI {{ $labels.namespace }}/{{ $labels.name }} on node {{ $labels.node }} delays a drain: its eviction strategy requires a migration.",
		},
		{
			"KubeVirtVMIExcessiveMigrations",
			"sum by(vmi, namespace) (topk by(vmi, namespace, vmim) (1, max_over_time(kubevirt_vmi_migration_succeeded[1d]))) >= 12",
			"", warning, none, "A VMI migrates more often than once in two hours.",
			"VMI {{ $labels.namespace }}/{{ $labels.vmi }} has migrated {{ $value }} times in the last 24 hours.",
		},
		{
			"OutdatedVirtualMachineInstanceWorkloads", "sum(kubevirt_vmi_number_of_outdated) != 0", "24h", warning, none,
			"{{ $value }} VMIs still run with the launcher of an earlier version.", "",
		},
		{
			"GuestVCPUQueueHighWarning", queue + "10", "", warning, none, "More than ten threads of a guest wait for a vCPU.",
			"In VMI {{ $labels.namespace }}/{{ $labels.name }}, {{ $value }} threads wait for a vCPU.",
		},
		{
			"GuestVCPUQueueHighCritical", queue + "20", "", critical, none,
			"More than twenty threads of a guest wait for a vCPU.",
			"In VMI {{ $labels.namespace }}/{{ $labels.name }}, {{ $value }} threads wait for a vCPU.",
		},
		{
			"VirtualMachineStuckInUnhealthyState",
			"sum by(name, namespace, status) (kubevirt_vm_info{status=~'provisioning|starting|terminating'} == 1 or kubevirt_vm_info{status_group='error'} == 1)" +
				" unless on(name, namespace) kubevirt_vmi_info",
			"10m", warning, none, "A VM does not start or stop, and has no VMI.",
			"VM {{ $labels.namespace }}/{{ $labels.name }} is in the state {{ $labels.status }}.",
		},
		{
			"VirtualMachineStuckOnNode",
			"sum by(name, namespace, status, node) ((kubevirt_vm_info{status=~'starting|stopping|terminating'} == 1 or kubevirt_vm_info{status_group='error'} == 1)" +
				" * on(name, namespace) group_left(node) " + started + ")",
			"5m", warning, none, "A VM does not start or stop on its node.",
			"VM {{ $labels.namespace }}/{{ $labels.name }} on node {{ $labels.node }} is in the state {{ $labels.status }}.",
		},
		{
			"VMNonRecoverableOSPanic", "sum by(namespace, name) (increase(kubevirt_vmi_guest_os_panic_total[24h])) > 5", "1m",
			critical, none, "A guest's operating system has crashed more than five times in 24 hours.",
			"The operating system of VMI {{ $labels.namespace }}/{{ $labels.name }} has crashed {{ $value | printf \"%.0f\" }} times.",
		},
	}
}

// memoryAlerts are about guests with little memory. The VMI's name in the guest's metrics is that in kubevirt_vmi_info;
// KubeVirt's rules compare it with the name of the Pod, and cannot fire.
func memoryAlerts() []alert {
	vm := " * on(name, namespace) group_left(vm) topk by(name, namespace) (1, label_replace(kubevirt_vmi_info{phase='running'}, 'vm', '$1', 'name', '(.+)'))"
	return []alert{
		{
			"KubeVirtVMGuestMemoryPressure",
			"(vmi:kubevirt_vmi_memory_headroom_ratio:sum < 0.05" +
				" and (vmi:kubevirt_vmi_pgmajfaults:rate5m > 5 or vmi:kubevirt_vmi_swap_traffic_bytes:rate5m > 1048576)" +
				" and vmi:kubevirt_vmi_memory_available_bytes:sum > 0)" + vm,
			"5m", warning, none, "A guest has little memory left and reads it back from its disk.",
			"VM {{ $labels.namespace }}/{{ $labels.vm }} has {{ $value | humanizePercentage }} of its memory left, and swaps or has major page faults.",
		},
		{
			"KubeVirtVMGuestMemoryAvailableLow",
			"(vmi:kubevirt_vmi_memory_headroom_ratio:sum < 0.03 and vmi:kubevirt_vmi_swap_traffic_bytes:rate30m < 2048" +
				" and vmi:kubevirt_vmi_pgmajfaults:rate30m < 1 and vmi:kubevirt_vmi_memory_available_bytes:sum > 0)" + vm,
			"30m", info, none, "A guest has little memory left, and does not swap.",
			"VM {{ $labels.namespace }}/{{ $labels.vm }} has {{ $value | humanizePercentage }} of its memory left.",
		},
	}
}

// foreign are the characters of a text of a guest that alerts do not show. Alerts may be shown as HTML, as Markdown or
// in a terminal, where other characters could make a guest's text look like a part of the alert.
const foreign = "`[^\\p{L}\\p{N} ._:/\\\\-]`"

func spaceAlerts() []alert {
	ofGuest := func(label string) string { return "{{ $labels." + label + " | reReplaceAll " + foreign + " `?` }}" }
	which := "{file_system_type!~'" + noSpace + "', mount_point!='System Reserved'}"
	used := "(kubevirt_vmi_filesystem_used_bytes" + which + " / kubevirt_vmi_filesystem_capacity_bytes" + which +
		") * 100 "
	row := func(limits, duration, severity, summary string) alert {
		return alert{
			"GuestFilesystemAlmostOutOfSpace", used + limits, duration, severity, none, summary,
			"In VMI {{ $labels.namespace }}/{{ $labels.name }}, {{ $value | printf \"%.0f\" }} % of file system " +
				ofGuest("mount_point") + " is used" +
				" (disk " + ofGuest("disk_name") + ").",
		}
	}
	return []alert{
		row(">= 85 < 95", "10m", warning, "A file system of a guest has little space left."),
		row(">= 95", "", critical, "A file system of a guest has almost no space left."),
	}
}
