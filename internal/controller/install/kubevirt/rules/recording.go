// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rules

// component is a process for which there are rules.
type component struct {
	// name is part of the names of recording rules. title and burst are parts of the names of alerts.
	name, title, burst string
	// process is the process that has the role, and metric the name of it in the metrics of its state.
	process, metric string
	// lowReady and low are names of alerts. low fires when the process' Deployment has had too few Pods for the time
	// after; empty means no such alert.
	lowReady, low, after string
}

// all are KubeVirt's components. Here virt-controller has the role of virt-operator, so the rules with that name follow
// virt-controller.
var all = []component{
	{"api", "VirtAPI", "VirtApi", "virt-api", "api", "LowReadyVirtAPICount", "LowVirtAPICount", "60m"},
	{
		"controller", "VirtController", "VirtController", "virt-controller", "controller",
		"LowReadyVirtControllersCount", "LowVirtControllersCount", "10m",
	},
	{"operator", "VirtOperator", "VirtOperator", "virt-controller", "controller", "LowReadyVirtOperatorsCount", "LowVirtOperatorCount", "60m"},
	{"handler", "VirtHandler", "VirtHandler", "virt-handler", "handler", "LowReadyVirtHandlerCount", "", ""},
}

// components records how many Pods of each component are scraped, run and are ready. kube-state-metrics decides how
// many run; without it, those that are scraped count. A component is ready if kube-state-metrics and its own metric
// report it; without kube-state-metrics, its own metric decides.
func components(namespace string) []Rule {
	rules := make([]Rule, 0, 3*len(all)+1)
	for _, c := range all {
		of := func(template string) string {
			return fill(template, map[string]string{
				"pods": "namespace='" + namespace + "', pod=~'" + c.process + "-.*'", "ns": namespace,
				"ready": "kubevirt_virt_" + c.metric + "_ready_status{namespace='" + namespace + "'}",
			})
		}
		prefix := "cluster:kubevirt_virt_" + c.name
		rules = append(rules,
			Rule{Record: prefix + "_up:sum", Expr: of("sum(up{{pods}}) or vector(0)")},
			Rule{Record: prefix + "_pods_running:count", Expr: of("count(kube_pod_status_phase{{pods}, phase='Running'} == 1)" +
				" or (count(kube_pod_status_phase{{pods}}) * 0) or sum(up{{pods}}) or vector(0)")},
			Rule{Record: prefix + "_ready:sum",
				Expr: of("sum(kube_pod_status_ready{{pods}, condition='true'} * on(pod, namespace) {ready})" +
					" or (count(kube_pod_status_ready{{pods}}) * 0) or sum({ready}) or vector(0)")},
		)
	}
	return append(rules, Rule{
		Record: "cluster:kubevirt_virt_operator_leading:sum",
		Expr:   "sum(kubevirt_virt_controller_leading_status{namespace='" + namespace + "'}) or vector(0)",
	})
}

func cluster(namespace string) []Rule {
	delta := func(usage string) string {
		of := func(containers string) string {
			return fill("max by(container, namespace, node, pod) ({usage}{{containers}} - on(pod, namespace, container) group_left(node)"+
				" max by(pod, namespace, container, node) (kube_pod_container_resource_requests{{containers}, resource='memory'}))",
				map[string]string{"usage": usage, "containers": containers})
		}
		// Launchers run in all namespaces. A Pod of a tenant that has a component's name does not count as one.
		return "topk by(container) (1, " +
			of("namespace='"+namespace+
				"', container=~'virt-controller|virt-api|virt-handler|virt-broker|virt-network-broker|virt-device-plugin|virt-exportproxy|virt-operator', pod=~'virt-.*'") +
			" or " + of("container='compute', pod=~'virt-launcher-.*'") + ")"
	}
	return []Rule{
		{Record: "cluster:kubevirt_non_schedulable_nodes:sum", Expr: "count(count by(node) (kube_node_role{role='arbiter'})) or vector(0)"},
		{
			Record: "cluster:kubevirt_nodes_allocatable:count",
			Expr:   "count(count by(node) (kube_node_status_allocatable)) - cluster:kubevirt_non_schedulable_nodes:sum",
		},
		{
			Record: "cluster:kubevirt_nodes_with_kvm:count",
			Expr:   "count(kube_node_status_allocatable{resource='devices_kubevirt_io_kvm'} != 0) or vector(0)",
		},
		{
			Record: "cluster:kubevirt_api_request_deprecated_total:sum",
			Expr: "group by(group, version, resource, subresource) (apiserver_requested_deprecated_apis{group='kubevirt.io'})" +
				" * on(group, version, resource, subresource) group_right()" +
				" sum by(group, version, resource, subresource, verb) (apiserver_request_total)",
		},
		{
			Record: "container:kubevirt_memory_delta_from_requested_bytes:max",
			Expr:   delta("container_memory_working_set_bytes"),
			Labels: map[string]string{"reason": "memory_working_set_delta_from_request"},
		},
		{
			Record: "container:kubevirt_memory_delta_from_requested_bytes:max", Expr: delta("container_memory_rss"),
			Labels: map[string]string{"reason": "memory_rss_delta_from_request"},
		},
	}
}

// guests records values of VMs and VMIs.
func guests() []Rule {
	margin := func(usage string) string {
		return "sum by(pod, container, namespace) (" +
			"max by(pod, container, namespace) (kube_pod_container_resource_requests{pod=~'virt-launcher-.*', container='compute', resource='memory'})" +
			" - on(pod, container, namespace) max by(pod, container, namespace) (" + usage +
			"{pod=~'virt-launcher-.*', container='compute'}))"
	}
	faults := func(window string) string {
		return "sum by(name, namespace) (rate(kubevirt_vmi_memory_pgmajfault_total[" + window + "]))"
	}
	// KubeVirt exports these counters as gauges. rate handles both.
	swap := func(window string) string {
		return "sum by(name, namespace) (rate(kubevirt_vmi_memory_swap_in_traffic_bytes[" + window + "]))" +
			" + sum by(name, namespace) (rate(kubevirt_vmi_memory_swap_out_traffic_bytes[" + window + "]))"
	}
	return []Rule{
		{Record: "pod_container:kubevirt_vm_memory_request_margin_based_on_working_set_bytes:sum", Expr: margin("container_memory_working_set_bytes")},
		{Record: "pod_container:kubevirt_vm_memory_request_margin_based_on_rss_bytes:sum", Expr: margin("container_memory_rss")},
		{
			Record: "namespace:kubevirt_vm:sum",
			Expr: "count by(namespace) (group by(name, namespace) (" +
				"{__name__=~'kubevirt_vm_(error|migrating|non_running|running|starting)_status_last_transition_timestamp_seconds'}))",
		},
		{
			Record: "node:kubevirt_vmi_phase:sum",
			Expr: "sum by(node, phase, os, workload, flavor, instance_type, preference, guest_os_kernel_release, guest_os_machine, guest_os_arch," +
				" guest_os_name, guest_os_version_id) (kubevirt_vmi_info)",
		},
		{Record: "vmi:kubevirt_vmi_memory_used_bytes:sum", Expr: "kubevirt_vmi_memory_available_bytes - kubevirt_vmi_memory_usable_bytes"},
		// A vCPU has a series for each state that it was in.
		{Record: "vmi:kubevirt_vmi_vcpu:count", Expr: "count by(namespace, name, node) (group by(namespace, name, node, id) (kubevirt_vmi_vcpu_seconds_total))"},
		{
			Record: "vmi:kubevirt_vmi_guest_queue_length:sum",
			Expr:   "clamp_min(sum by(namespace, name, node) (kubevirt_vmi_guest_load_1m) - vmi:kubevirt_vmi_vcpu:count, 0)",
		},
		{Record: "vmi:kubevirt_vmi_memory_available_bytes:sum", Expr: "sum by(name, namespace) (kubevirt_vmi_memory_available_bytes)"},
		{
			Record: "vmi:kubevirt_vmi_memory_headroom_ratio:sum",
			Expr:   "sum by(name, namespace) (kubevirt_vmi_memory_usable_bytes) / sum by(name, namespace) (kubevirt_vmi_memory_available_bytes)",
		},
		{Record: "vmi:kubevirt_vmi_pgmajfaults:rate5m", Expr: faults("5m")},
		{Record: "vmi:kubevirt_vmi_pgmajfaults:rate30m", Expr: faults("30m")},
		{Record: "vmi:kubevirt_vmi_swap_traffic_bytes:rate5m", Expr: swap("5m")},
		{Record: "vmi:kubevirt_vmi_swap_traffic_bytes:rate30m", Expr: swap("30m")},
	}
}

// snapshots records which claims were restored from snapshots.
func snapshots() []Rule {
	return []Rule{
		{
			Record: "pvc:kubevirt_vmsnapshot_labels:info",
			Expr: "label_replace(label_replace(kube_persistentvolumeclaim_labels{" +
				"label_restore_kubevirt_io_source_vm_name!='', label_restore_kubevirt_io_source_vm_namespace!=''} == 1," +
				" 'vm_namespace', '$1', 'label_restore_kubevirt_io_source_vm_namespace', '(.*)')," +
				" 'vm_name', '$1', 'label_restore_kubevirt_io_source_vm_name', '(.*)')",
		},
		{Record: "vm:kubevirt_vmsnapshot_disks_restored:sum", Expr: "sum by(vm_name, vm_namespace) (pvc:kubevirt_vmsnapshot_labels:info)"},
		{
			Record: "vm:kubevirt_vmsnapshot_restored_bytes:sum",
			Expr: "sum by(vm_name, vm_namespace) (kube_persistentvolumeclaim_resource_requests_storage_bytes" +
				" * on(persistentvolumeclaim, namespace) group_left(vm_name, vm_namespace) pvc:kubevirt_vmsnapshot_labels:info)",
		},
	}
}

// deprecated records KubeVirt's former names, which dashboards still use.
func deprecated() []Rule {
	aliases := [][2]string{
		{"kubevirt_virt_api_up", "cluster:kubevirt_virt_api_up:sum"},
		{"kubevirt_virt_controller_up", "cluster:kubevirt_virt_controller_up:sum"},
		{"kubevirt_virt_controller_ready", "cluster:kubevirt_virt_controller_ready:sum"},
		{"kubevirt_virt_operator_up", "cluster:kubevirt_virt_operator_up:sum"},
		{"kubevirt_virt_operator_ready", "cluster:kubevirt_virt_operator_ready:sum"},
		{"kubevirt_virt_operator_leading", "cluster:kubevirt_virt_operator_leading:sum"},
		{"kubevirt_virt_handler_up", "cluster:kubevirt_virt_handler_up:sum"},
		{"kubevirt_allocatable_nodes", "cluster:kubevirt_nodes_allocatable:count"},
		{"kubevirt_nodes_with_kvm", "cluster:kubevirt_nodes_with_kvm:count"},
		{"kubevirt_api_request_deprecated_total", "cluster:kubevirt_api_request_deprecated_total:sum"},
		{"kubevirt_memory_delta_from_requested_bytes", "container:kubevirt_memory_delta_from_requested_bytes:max"},
		{"kubevirt_number_of_vms", "namespace:kubevirt_vm:sum"},
		{
			"kubevirt_vm_container_memory_request_margin_based_on_rss_bytes",
			"pod_container:kubevirt_vm_memory_request_margin_based_on_rss_bytes:sum",
		},
		{
			"kubevirt_vm_container_memory_request_margin_based_on_working_set_bytes",
			"pod_container:kubevirt_vm_memory_request_margin_based_on_working_set_bytes:sum",
		},
		{"kubevirt_vm_created_total", "sum by(namespace) (kubevirt_vm_created_by_pod_total)"},
		{"kubevirt_vmi_guest_vcpu_queue", "vmi:kubevirt_vmi_guest_queue_length:sum"},
		{"kubevirt_vmi_memory_used_bytes", "vmi:kubevirt_vmi_memory_used_bytes:sum"},
		{"kubevirt_vmi_migration_data_total_bytes", "kubevirt_vmi_migration_data_bytes_total"},
		{"kubevirt_vmi_phase_count", "node:kubevirt_vmi_phase:sum"},
		{"kubevirt_vmsnapshot_persistentvolumeclaim_labels", "pvc:kubevirt_vmsnapshot_labels:info"},
		{"kubevirt_vmsnapshot_disks_restored_from_source", "vm:kubevirt_vmsnapshot_disks_restored:sum"},
		{"kubevirt_vmsnapshot_disks_restored_from_source_bytes", "vm:kubevirt_vmsnapshot_restored_bytes:sum"},
	}
	rules := make([]Rule, 0, len(aliases))
	for _, alias := range aliases {
		rules = append(rules, Rule{Record: alias[0], Expr: alias[1]})
	}
	return rules
}
