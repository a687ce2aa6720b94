// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

import (
	"fmt"
	"maps"
)

// demo returns a series of VMI ns/demo on node a.
func demo(metric, more string) string {
	return metric + "{namespace='ns', name='demo', node='a'" + more + "}"
}

func lifecycleScenarios() []scenario {
	named := map[string]string{"namespace": "ns", "name": "demo", "node": "a"}
	vm := func(status, group string) string {
		return "kubevirt_vm_info{namespace='ns', name='demo', status='" + status + "', status_group='" + group + "'}"
	}
	stuck := withoutNode(named)
	stuck["status"] = "starting"
	onNode := maps.Clone(named)
	onNode["status"] = "crashloopbackoff"
	migrations := map[string]string{}
	for i := range 12 {
		migrations[fmt.Sprintf("kubevirt_vmi_migration_succeeded{namespace='ns', vmi='demo', vmim='m%d'}", i)] = "1x40"
	}
	migrations["kubevirt_vmi_migration_succeeded{namespace='ns', vmi='demo', vmim='m11'}"] = "_x12 1x40"
	return []scenario{
		{alert: "VMCannotBeEvicted", silent: []string{"5m", "12m"}, firing: "7m", labels: named,
			description: "VMI ns/demo on node a delays a drain: its eviction strategy requires a migration.",
			series: map[string]string{
				demo("kubevirt_vmi_non_evictable", ""): "0x4 1x5 0x10", demo("kubevirt_vmi_info", ", phase='running'"): "1x20",
			}},
		{alert: "VMCannotBeEvicted", silent: []string{"7m"}, series: map[string]string{
			demo("kubevirt_vmi_non_evictable", ""): "1x10", demo("kubevirt_vmi_info", ", phase='scheduling'"): "1x20",
		}},
		{alert: "KubeVirtVMIExcessiveMigrations", long: true, interval: "1h", silent: []string{"10h"}, firing: "13h", labels: map[string]string{"namespace": "ns", "vmi": "demo"},
			description: "VMI ns/demo has migrated 12 times in the last 24 hours.", series: migrations},
		{alert: "OutdatedVirtualMachineInstanceWorkloads", long: true, interval: "5m", silent: []string{"23h", "28h"}, firing: "25h",
			summary: "3 VMIs still run with the launcher of an earlier version.", series: map[string]string{
				// The leader changes meanwhile.
				"kubevirt_vmi_number_of_outdated{pod='virt-controller-1'}": "3x119",
				"kubevirt_vmi_number_of_outdated{pod='virt-controller-2'}": "_x120 3x199 0x60",
			}},
		{alert: "VirtualMachineStuckInUnhealthyState", silent: []string{"9m", "26m"}, firing: "11m", labels: stuck,
			description: "VM ns/demo is in the state starting.",
			series:      map[string]string{vm("starting", "starting"): "1x20 _x10"}},
		{alert: "VirtualMachineStuckInUnhealthyState", silent: []string{"11m"}, series: map[string]string{
			vm("starting", "starting"): "1x20", demo("kubevirt_vmi_info", ", phase='scheduling'"): "1x20",
		}},
		{alert: "VirtualMachineStuckOnNode", silent: []string{"4m", "26m"}, firing: "6m", labels: onNode,
			description: "VM ns/demo on node a is in the state crashloopbackoff.", series: map[string]string{
				vm("crashloopbackoff", "error"): "1x20 _x10", demo("kubevirt_vmi_info", ", phase='scheduled'"): "1x30",
			}},
		{alert: "VMNonRecoverableOSPanic", long: true, silent: []string{"5m", "1600m"}, firing: "15m", labels: withoutNode(named),
			description: "The operating system of VMI ns/demo has crashed 7 times.", series: map[string]string{
				demo("kubevirt_vmi_guest_os_panic_total", ", type='hyperv'"): "0+1x7 7x1600",
			}},
	}
}

// withoutNode returns the labels without that of the node.
func withoutNode(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	delete(labels, "node")
	return labels
}

func guestScenarios() []scenario {
	named := map[string]string{"namespace": "ns", "name": "demo", "node": "a"}
	cpus := map[string]string{
		demo("kubevirt_vmi_vcpu_seconds_total", ", id='0', state='running'"): "1x20",
		demo("kubevirt_vmi_vcpu_seconds_total", ", id='0', state='blocked'"): "1x20",
		demo("kubevirt_vmi_vcpu_seconds_total", ", id='1', state='running'"): "1x20",
	}
	load := func(values string) map[string]string {
		series := maps.Clone(cpus)
		series[demo("kubevirt_vmi_guest_load_1m", "")] = values
		return series
	}
	memory := func(usable, faults, swap string) map[string]string {
		return map[string]string{
			demo("kubevirt_vmi_info", ", phase='running', vmi_pod='virt-launcher-demo-x'"): "1x90",
			demo("kubevirt_vmi_memory_available_bytes", ""):                                "1000x90",
			demo("kubevirt_vmi_memory_usable_bytes", ""):                                   usable,
			demo("kubevirt_vmi_memory_pgmajfault_total", ""):                               faults,
			demo("kubevirt_vmi_memory_swap_in_traffic_bytes", ""):                          swap,
			demo("kubevirt_vmi_memory_swap_out_traffic_bytes", ""):                         "0x90",
		}
	}
	space := func(kind, values string) map[string]string {
		more := ", disk_name='vda1', mount_point='/', file_system_type='" + kind + "'"
		return map[string]string{demo("kubevirt_vmi_filesystem_used_bytes", more): values,
			demo("kubevirt_vmi_filesystem_capacity_bytes", more): "200x40"}
	}
	onDisk := maps.Clone(named)
	onDisk["disk_name"], onDisk["mount_point"], onDisk["file_system_type"] = "vda1", "/", "ext4"
	hostile := maps.Clone(named)
	hostile["disk_name"], hostile["mount_point"], hostile["file_system_type"] = "](https://x.y)", `C:\Dåta-1 <a href="x">`+"\n", "ext4"
	inHostile := `, disk_name='](https://x.y)', mount_point='C:\\Dåta-1 <a href="x">\n', file_system_type='ext4'`
	pressed := map[string]string{"namespace": "ns", "name": "demo", "vm": "demo"}
	const full = "GuestFilesystemAlmostOutOfSpace"
	return []scenario{
		{alert: "GuestVCPUQueueHighWarning", silent: []string{"2m", "12m"}, firing: "6m", labels: named, series: load("12x4 14x5 2x10"),
			description: "In VMI ns/demo, 12 threads wait for a vCPU."},
		{alert: "GuestVCPUQueueHighCritical", silent: []string{"2m", "12m"}, firing: "6m", labels: named, series: load("22x4 24x5 2x10"),
			description: "In VMI ns/demo, 22 threads wait for a vCPU."},
		{alert: "KubeVirtVMGuestMemoryPressure", silent: []string{"4m", "50m"}, firing: "12m", labels: pressed,
			series:      memory("40x39 400x50", "0+600x90", "0x90"),
			description: "VM ns/demo has 4% of its memory left, and swaps or has major page faults."},
		{alert: "KubeVirtVMGuestMemoryPressure", silent: []string{"4m", "50m"}, firing: "12m", labels: pressed,
			series:      memory("40x39 400x50", "0x90", "0+120000000x90"),
			description: "VM ns/demo has 4% of its memory left, and swaps or has major page faults."},
		{alert: "KubeVirtVMGuestMemoryPressure", silent: []string{"12m"}, series: memory("40x90", "0x90", "0x90")},
		{alert: "KubeVirtVMGuestMemoryAvailableLow", silent: []string{"29m", "70m"}, firing: "35m", labels: pressed,
			series:      memory("20x59 400x30", "0x90", "0x90"),
			description: "VM ns/demo has 2% of its memory left."},
		{alert: "KubeVirtVMGuestMemoryAvailableLow", silent: []string{"35m"}, series: memory("20x90", "0+600x90", "0x90")},
		{alert: full, severity: "warning", silent: []string{"9m", "25m"}, firing: "11m", labels: onDisk, series: space("ext4", "180x19 20x20"),
			description: "In VMI ns/demo, 90 % of file system / is used (disk vda1)."},
		{alert: full, severity: "critical", silent: []string{"3m", "25m"}, firing: "6m", labels: onDisk, series: space("ext4", "20x4 192x14 20x20"),
			description: "In VMI ns/demo, 96 % of file system / is used (disk vda1)."},
		{alert: full, severity: "critical", silent: []string{"11m"}, series: space("squashfs", "200x20")},
		{alert: full, severity: "critical", firing: "6m", labels: hostile,
			series: map[string]string{
				demo("kubevirt_vmi_filesystem_used_bytes", inHostile):     "196x20",
				demo("kubevirt_vmi_filesystem_capacity_bytes", inHostile): "200x20",
			},
			description: `In VMI ns/demo, 98 % of file system C:\Dåta-1 ?a href??x??? is used (disk ??https://x.y?).`},
	}
}

// recordings is a test in which every recording rule has a value.
func recordings() map[string]any {
	world := map[string]string{
		"kube_node_role{node='c', role='arbiter'}":                                                     "1x40",
		"kube_node_status_allocatable{node='a', resource='devices_kubevirt_io_kvm'}":                   "110x40",
		"kube_node_status_allocatable{node='c', resource='cpu'}":                                       "2x40",
		"apiserver_requested_deprecated_apis{group='kubevirt.io', version='v1alpha3', resource='vms'}": "1x40",
		"apiserver_request_total{group='kubevirt.io', version='v1alpha3', resource='vms', verb='GET'}": "7x40",

		"kube_pod_container_resource_requests{namespace='ns', pod='virt-launcher-demo-x', container='compute', resource='memory'}": "1000x40",
		"container_memory_working_set_bytes{namespace='ns', pod='virt-launcher-demo-x', container='compute', id='1'}":              "900x40",
		"container_memory_rss{namespace='ns', pod='virt-launcher-demo-x', container='compute', id='1'}":                            "800x40",
		"kube_pod_container_resource_requests{namespace='kubevirt', pod='virt-api-1', container='virt-api', resource='memory'}":    "1000x40",
		"container_memory_working_set_bytes{namespace='kubevirt', pod='virt-api-1', container='virt-api', id='2'}":                 "1010x40",
		"container_memory_rss{namespace='kubevirt', pod='virt-api-1', container='virt-api', id='2'}":                               "1020x40",
		// A tenant's Pod with the name of a component.
		"kube_pod_container_resource_requests{namespace='ns', pod='virt-api-x', container='virt-api', resource='memory'}": "1x40",
		"container_memory_working_set_bytes{namespace='ns', pod='virt-api-x', container='virt-api', id='3'}":              "9000x40",
		"container_memory_rss{namespace='ns', pod='virt-api-x', container='virt-api', id='3'}":                            "9000x40",

		"kube_persistentvolumeclaim_labels{namespace='ns', persistentvolumeclaim='c', label_restore_kubevirt_io_source_vm_name='demo', " +
			"label_restore_kubevirt_io_source_vm_namespace='ns'}": "1x40",
		"kube_persistentvolumeclaim_resource_requests_storage_bytes{namespace='ns', persistentvolumeclaim='c'}": "5000x40",

		"kubevirt_vm_created_by_pod_total{namespace='ns', pod='virt-api-1'}": "3x40",
		"kubevirt_vm_created_by_pod_total{namespace='ns', pod='virt-api-2'}": "4x40",
		demo("kubevirt_vmi_migration_data_bytes_total", ""):                  "11x40",
		demo("kubevirt_vmi_info", ", phase='running', os='debian'"):          "1x40",
		demo("kubevirt_vmi_guest_load_1m", ""):                               "3x40",
		demo("kubevirt_vmi_vcpu_seconds_total", ", id='0', state='running'"): "1x40",
		demo("kubevirt_vmi_memory_available_bytes", ""):                      "1000x40",
		demo("kubevirt_vmi_memory_usable_bytes", ""):                         "400x40",
		demo("kubevirt_vmi_memory_pgmajfault_total", ""):                     "0+60x40",
		demo("kubevirt_vmi_memory_swap_in_traffic_bytes", ""):                "0+60x40",
		demo("kubevirt_vmi_memory_swap_out_traffic_bytes", ""):               "0+120x40",
	}
	for _, status := range []string{"error", "migrating", "non_running", "running", "starting"} {
		for _, name := range []string{"demo", "other"} {
			world[fmt.Sprintf("kubevirt_vm_%s_status_last_transition_timestamp_seconds{namespace='ns', name='%s'}", status, name)] = "0x40"
		}
	}
	values := map[string]float64{
		"cluster:kubevirt_nodes_allocatable:count":             1,
		"cluster:kubevirt_nodes_with_kvm:count":                1,
		"cluster:kubevirt_non_schedulable_nodes:sum":           1,
		"cluster:kubevirt_api_request_deprecated_total:sum":    7,
		"kubevirt_number_of_vms":                               2,
		"kubevirt_vmi_phase_count":                             1,
		"kubevirt_vmi_memory_used_bytes":                       600,
		"kubevirt_vmi_guest_vcpu_queue":                        2,
		"kubevirt_vm_created_total":                            7,
		"kubevirt_vmi_migration_data_total_bytes":              11,
		"kubevirt_vmsnapshot_disks_restored_from_source":       1,
		"kubevirt_vmsnapshot_disks_restored_from_source_bytes": 5000,
		"vmi:kubevirt_vmi_memory_headroom_ratio:sum":           0.4,
		"vmi:kubevirt_vmi_pgmajfaults:rate5m":                  1,
		"vmi:kubevirt_vmi_pgmajfaults:rate30m":                 1,
		"vmi:kubevirt_vmi_swap_traffic_bytes:rate5m":           3,
		"vmi:kubevirt_vmi_swap_traffic_bytes:rate30m":          3,

		"kubevirt_vm_container_memory_request_margin_based_on_rss_bytes":                                            200,
		"kubevirt_vm_container_memory_request_margin_based_on_working_set_bytes":                                    100,
		"kubevirt_memory_delta_from_requested_bytes{reason='memory_rss_delta_from_request', container='compute'}":   -200,
		"container:kubevirt_memory_delta_from_requested_bytes:max{reason=~'memory_working.*', container='compute'}": -100,
		"kubevirt_memory_delta_from_requested_bytes{reason='memory_rss_delta_from_request', container!='compute'}":  20,
	}
	var series, expected []map[string]any
	for name, samples := range world {
		series = append(series, map[string]any{"series": name, "values": samples})
	}
	expect := func(expr string, value float64) {
		expected = append(expected,
			map[string]any{"expr": expr, "eval_time": "35m",
				"exp_samples": []any{map[string]any{"labels": "{}", "value": value}}})
	}
	for name, value := range values {
		expect("round(sum("+name+"), 0.001)", value)
	}
	seen := map[string]bool{}
	for _, rule := range installed.Recordings() {
		if !seen[rule.Record] {
			expect("count("+rule.Record+") > bool 0", 1)
		}
		seen[rule.Record] = true
	}
	return map[string]any{"name": "recording rules", "interval": "1m", "input_series": series,
		"promql_expr_test": expected}
}
