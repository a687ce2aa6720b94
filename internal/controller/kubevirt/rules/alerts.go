// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rules

import "fmt"

// componentAlerts are about the Pods of the components and their requests to the API server.
func componentAlerts(namespace string) []alert {
	var alerts []alert
	for _, c := range all {
		who := c.process
		if c.name == "operator" {
			who += ", which has the role of virt-operator,"
		}
		count := "cluster:kubevirt_virt_" + c.name
		alerts = append(alerts,
			alert{c.title + "Down", count + "_pods_running:count == 0", "10m", critical, critical, "No Pod of " + who + " runs.", ""},
			alert{
				"NoReady" + c.title, count + "_ready:sum == 0", "10m", critical, critical, "No Pod of " + who + " is ready.", "",
			},
			alert{
				c.lowReady, fmt.Sprintf("0 < %[1]s_ready:sum < %[1]s_pods_running:count", count), "10m", warning, warning,
				"Some Pods of " + who + " run, but are not ready.", "",
			},
			alert{
				c.burst + "RESTErrorsBurst", failures(namespace, c.process) + " >= 0.8", "5m", critical, critical,
				"At least 80 % of the API requests of " + who + " failed in the last five minutes.", "",
			},
		)
		if c.low != "" {
			alerts = append(alerts, alert{
				c.low, fmt.Sprintf("%s_up:sum < on() 0.75 * sum(kube_deployment_spec_replicas{namespace='%s', deployment='%s'})", count, namespace, c.process),
				c.after, warning, warning, "Fewer than three quarters of the Pods of " + who + " can be scraped.", "",
			})
		}
	}
	return append(alerts,
		alert{
			"NoLeadingVirtOperator", "cluster:kubevirt_virt_operator_leading:sum == 0", "10m", critical, critical,
			"No virt-controller is the leader: nothing is reconciled.", "",
		},
		alert{
			"VirtHandlerDaemonSetRolloutFailing",
			fill("kube_daemonset_status_number_ready{{of}} != kube_daemonset_status_desired_number_scheduled{{of}}",
				map[string]string{"of": "namespace='" + namespace + "', daemonset='virt-handler'"}),
			"15m", warning, warning, "virt-handler is not ready on every node on which it should run.", "",
		},
	)
}

// failures is the share of a component's requests to the API server that failed.
func failures(namespace, process string) string {
	return fill("sum(rate(kubevirt_rest_client_requests_total{{pods}, code=~'4..|5..'}[5m])) / sum(rate(kubevirt_rest_client_requests_total{{pods}}[5m]))",
		map[string]string{"pods": "namespace='" + namespace + "', pod=~'" + process + "-.*'"})
}

// clusterAlerts are about nodes, launcher Pods and the use of the API.
func clusterAlerts(namespace string) []alert {
	emulation := "(sum(kubevirt_configuration_emulation_enabled{namespace='" + namespace + "'}) or vector(0)) > 0"
	return []alert{
		{
			"KubeVirtDeprecatedAPIRequested",
			fill("sum by(resource, group, version) ((round(increase({x}[10m])) > 0 and {x} offset 10m) or ({x} != 0 unless {x} offset 10m))",
				map[string]string{"x": "cluster:kubevirt_api_request_deprecated_total:sum{verb!~'LIST|WATCH'}"}),
			"", info, none, "A client uses a deprecated API.",
			"In the last ten minutes, a client used {{ $labels.resource }}.{{ $labels.group }}/{{ $labels.version }}, which is deprecated.",
		},
		{
			// With emulation no node needs KVM.
			"LowKVMNodesCount",
			"(cluster:kubevirt_nodes_allocatable:count > 1 and cluster:kubevirt_nodes_with_kvm:count < 2) unless on() " + emulation,
			"5m", warning, warning, "Fewer than two nodes have KVM, so that guests cannot migrate.",
			"A live migration needs two nodes with the resource devices.kubevirt.io/kvm. {{ $value }} nodes can run Pods.",
		},
		{
			// An exporter that does not exist, or that does not export the label, does not mean that there are no nodes.
			"KubeVirtNoAvailableNodesToRunVMs",
			"((sum(kube_node_status_allocatable{resource='devices_kubevirt_io_kvm'}) or sum(kube_node_status_allocatable) * 0) == 0 unless on() " +
				emulation + ") or (sum(kube_node_labels{label_kubevirt_io_schedulable='true'} * on(node) group_left() (1 - kube_node_spec_unschedulable))" +
				" or sum(kube_node_labels{label_kubevirt_io_schedulable!=''}) * 0) == 0",
			"5m", warning, critical, "No node can run VMs.",
			"No node has KVM although emulation is off, or every node with an agent is cordoned or marked unschedulable for VMs.",
		},
		{
			"VirtLauncherPodsStuckFailed", "sum(kube_pod_status_phase{phase='Failed', pod=~'virt-launcher-.*'}) >= 200", "10m", critical, critical,
			"{{ $value }} launcher Pods have failed and are not deleted.",
			"{{ range query \"topk(1, sum by(namespace) (kube_pod_status_phase{phase='Failed', pod=~'virt-launcher-.*'}))\" }}" +
				"Most of them, {{ .Value }}, are in namespace {{ .Labels.namespace }}.{{ end }}",
		},
		{
			"OrphanedVirtualMachineInstances",
			fill("((max by(node) (kube_pod_status_ready{condition='true', {agents}}"+
				" * on(pod, namespace) group_left(node) max by(namespace, pod, node) (kube_pod_info{{agents}, node!=''})) == 1)",
				map[string]string{"agents": "namespace='" + namespace + "', pod=~'virt-handler-.*'"}) +
				" or (count by(node) (kube_pod_info{pod=~'virt-launcher-.*', node!=''}) * 0)) == 0",
			"10m", warning, warning, "Guests run on node {{ $labels.node }}, and no virt-handler is ready there.",
			"The guests keep running, but their state is not reported, and they can be neither changed nor migrated.",
		},
	}
}
