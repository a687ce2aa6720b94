// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
)

// scenario is a world of series in which an alert fires, or does not.
type scenario struct {
	alert string
	// severity selects one of two rules with the same name.
	severity string
	// series are values by series, in promtool's notation: "1x4 0x20" is 1 five times, then 0 twenty-one times.
	series map[string]string
	// interval is the time between two values, one minute if empty.
	interval string
	// long is true if the scenario lasts for a day. The rules are then evaluated every five minutes.
	long bool
	// firing is when the alert fires; empty if it never does. It does not at the times in silent.
	firing string
	silent []string
	// labels are those of the alert that not all alerts have.
	labels map[string]string
	// summary and description are set if those of the rule contain values.
	summary, description string
}

// rule returns the rule of the scenario's alert.
func (s scenario) rule(t *testing.T) rules.Rule {
	t.Helper()
	for _, rule := range installed.Alerts() {
		if rule.Alert == s.alert && (s.severity == "" || s.severity == rule.Labels["severity"]) {
			return rule
		}
	}
	t.Fatalf("there is no alert %s %s", s.alert, s.severity)
	return rules.Rule{}
}

// test returns the scenario as one of promtool's tests.
func (s scenario) test(t *testing.T) map[string]any {
	t.Helper()
	interval := s.interval
	if interval == "" {
		interval = "1m"
	}
	var series, expected []map[string]any
	for name, values := range s.series {
		series = append(series, map[string]any{"series": name, "values": values})
	}
	for _, at := range s.silent {
		expected = append(expected, map[string]any{"eval_time": at, "alertname": s.alert, "exp_alerts": []any{}})
	}
	if s.firing != "" {
		rule := s.rule(t)
		labels, annotations := maps.Clone(rule.Labels), maps.Clone(rule.Annotations)
		maps.Copy(labels, s.labels)
		for name, text := range map[string]string{"summary": s.summary, "description": s.description} {
			if text != "" {
				annotations[name] = text
			}
			if strings.Contains(annotations[name], "{{") {
				t.Errorf("the scenario of %s does not say what its %s is", s.alert, name)
			}
		}
		expected = append(expected, map[string]any{"eval_time": s.firing, "alertname": s.alert, "exp_alerts": []any{
			map[string]any{"exp_labels": labels, "exp_annotations": annotations},
		}})
	}
	return map[string]any{"name": s.alert, "interval": interval, "input_series": series, "alert_rule_test": expected}
}

// goesBad is 1 for five minutes, then 0 for 20, then 1.
const goesBad = "1x4 0x19 1x20"

func scenarios() []scenario {
	all := append(componentScenarios(), nodeScenarios()...)
	all = append(append(all, lifecycleScenarios()...), guestScenarios()...)
	return append(all, ownScenarios()...)
}

func componentScenarios() []scenario {
	var all []scenario
	for _, c := range []struct{ title, burst, process, lowReady, low, after, late string }{
		{"VirtAPI", "VirtApi", "api", "LowReadyVirtAPICount", "LowVirtAPICount", "59m", "61m"},
		{"VirtController", "VirtController", "controller", "LowReadyVirtControllersCount", "LowVirtControllersCount", "9m", "11m"},
		{"VirtHandler", "VirtHandler", "handler", "LowReadyVirtHandlerCount", "", "", ""},
		{"VirtOperator", "VirtOperator", "controller", "LowReadyVirtOperatorsCount", "LowVirtOperatorCount", "59m", "61m"},
	} {
		// of returns a series of one of the component's Pods.
		of := func(metric string, pod int, more string) string {
			return fmt.Sprintf("%s{namespace='kubevirt', pod='virt-%s-%d'%s}", metric, c.process, pod, more)
		}
		ready := "kubevirt_virt_" + c.process + "_ready_status"
		const running, condition = ", phase='Running'", ", condition='true'"
		all = append(all,
			scenario{alert: c.title + "Down", series: map[string]string{of("kube_pod_status_phase", 1, running): goesBad},
				silent: []string{"14m", "26m"}, firing: "16m"},
			// Without kube-state-metrics.
			scenario{alert: c.title + "Down", series: map[string]string{of("up", 1, ""): goesBad},
				silent: []string{"14m", "26m"}, firing: "16m"},
			scenario{alert: "NoReady" + c.title, silent: []string{"14m", "26m"}, firing: "16m", series: map[string]string{
				of("kube_pod_status_phase", 1, running): "1x40", of("kube_pod_status_ready", 1, condition): "1x40",
				of(ready, 1, ""): goesBad,
			}},
			scenario{alert: "NoReady" + c.title, series: map[string]string{of(ready, 1, ""): goesBad},
				silent: []string{"14m", "26m"}, firing: "16m"},
			scenario{alert: c.lowReady, silent: []string{"14m", "26m"}, firing: "16m", series: map[string]string{
				of("kube_pod_status_phase", 1, running): "1x40", of("kube_pod_status_ready", 1, condition): "1x40",
				of(ready, 1, ""):                        "1x40",
				of("kube_pod_status_phase", 2, running): "1x40", of("kube_pod_status_ready", 2, condition): goesBad,
				of(ready, 2, ""): "1x40",
			}},
			// None is ready: that is another alert.
			scenario{alert: c.lowReady, silent: []string{"16m"},
				series: map[string]string{of("up", 1, ""): "1x40", of(ready, 1, ""): "0x40"}},
			// Without kube-state-metrics, a Pod counts while it is scraped.
			scenario{alert: c.lowReady, silent: []string{"14m", "26m"}, firing: "16m", series: map[string]string{
				of("up", 1, ""): "1x40", of(ready, 1, ""): "1x40", of("up", 2, ""): "1x40", of(ready, 2, ""): goesBad,
			}},
			scenario{alert: c.lowReady, silent: []string{"16m"}, series: map[string]string{
				of("up", 1, ""): "1x40", of(ready, 1, ""): "1x40", of("up", 2, ""): "0x40",
			}},
			scenario{alert: c.burst + "RESTErrorsBurst", silent: []string{"3m", "30m"}, firing: "12m", series: map[string]string{
				of("kubevirt_rest_client_requests_total", 1, ", code='200'"): "0+10x40",
				of("kubevirt_rest_client_requests_total", 1, ", code='500'"): "0+90x18 1620+0x20",
				of("kubevirt_rest_client_requests_total", 1, ", code='404'"): "0+10x18 180+0x20",
			}},
		)
		if c.low != "" {
			all = append(all, scenario{alert: c.low, silent: []string{c.after, "75m"}, firing: c.late, series: map[string]string{
				of("up", 1, ""): "1x90", of("up", 2, ""): "0x70 1x20",
				"kube_deployment_spec_replicas{namespace='kubevirt', deployment='virt-" + c.process + "'}": "2x90",
			}})
		}
	}
	return append(all,
		scenario{alert: "NoLeadingVirtOperator", silent: []string{"14m", "26m"}, firing: "16m", series: map[string]string{
			"kubevirt_virt_controller_leading_status{namespace='kubevirt', pod='virt-controller-1'}": goesBad,
			"kubevirt_virt_controller_leading_status{namespace='kubevirt', pod='virt-controller-2'}": "0x40",
		}},
		scenario{alert: "VirtHandlerDaemonSetRolloutFailing", silent: []string{"19m", "28m"}, firing: "21m",
			labels: map[string]string{"namespace": "kubevirt", "daemonset": "virt-handler"}, series: map[string]string{
				"kube_daemonset_status_number_ready{namespace='kubevirt', daemonset='virt-handler'}":             "2x4 1x19 2x10",
				"kube_daemonset_status_desired_number_scheduled{namespace='kubevirt', daemonset='virt-handler'}": "2x40",
			}},
	)
}

func nodeScenarios() []scenario {
	kvm := func(node, values string) (string, string) {
		return "kube_node_status_allocatable{resource='devices_kubevirt_io_kvm', node='" + node + "'}", values
	}
	world := func(a, b string, more map[string]string) map[string]string {
		series := maps.Clone(more)
		if series == nil {
			series = map[string]string{}
		}
		for node, values := range map[string]string{"a": a, "b": b} {
			name, values := kvm(node, values)
			series[name] = values
		}
		return series
	}
	emulation := map[string]string{
		"kubevirt_configuration_emulation_enabled{namespace='kubevirt', pod='virt-controller-1'}": "1x20"}
	labeled := "kube_node_labels{node='a', label_kubevirt_io_schedulable='true'}"
	return []scenario{
		{alert: "LowKVMNodesCount", silent: []string{"4m", "12m"}, firing: "6m", series: world("110x20", "0x9 110x10", nil),
			description: "A live migration needs two nodes with the resource devices.kubevirt.io/kvm. 2 nodes can run Pods."},
		{alert: "LowKVMNodesCount", silent: []string{"10m"}, series: world("0x20", "0x20", emulation)},
		{alert: "KubeVirtNoAvailableNodesToRunVMs", silent: []string{"4m", "12m"}, firing: "6m", series: world("0x20", "0x9 110x10", nil)},
		{alert: "KubeVirtNoAvailableNodesToRunVMs", silent: []string{"10m"}, series: world("0x20", "0x20", emulation)},
		// Every node is cordoned.
		{alert: "KubeVirtNoAvailableNodesToRunVMs", silent: []string{"4m", "12m"}, firing: "6m", series: world("110x20", "110x20", map[string]string{
			labeled: "1x20", "kube_node_spec_unschedulable{node='a'}": "1x9 0x10",
		})},
		// Neither exporter exists, or kube-state-metrics does not export the label.
		{alert: "KubeVirtNoAvailableNodesToRunVMs", silent: []string{"10m"}, series: map[string]string{"up{job='other'}": "1x20"}},
		{alert: "KubeVirtNoAvailableNodesToRunVMs", silent: []string{"10m"}, series: world("110x20", "0x20", map[string]string{"kube_node_labels{node='a'}": "1x20"})},
		{alert: "VirtLauncherPodsStuckFailed", silent: []string{"9m", "22m"}, firing: "11m", summary: "200 launcher Pods have failed and are not deleted.",
			description: "Most of them, 199, are in namespace ns.", series: map[string]string{
				"kube_pod_status_phase{namespace='ns', pod='virt-launcher-a', phase='Failed'}": "199x20 0x10",
				"kube_pod_status_phase{namespace='b', pod='virt-launcher-b', phase='Failed'}":  "1x30",
			}},
		{alert: "OrphanedVirtualMachineInstances", silent: []string{"9m", "22m"}, firing: "11m", labels: map[string]string{"node": "a"},
			summary: "Guests run on node a, and no virt-handler is ready there.", series: map[string]string{
				"kube_pod_info{namespace='ns', pod='virt-launcher-a', node='a'}":                      "1x30",
				"kube_pod_info{namespace='kubevirt', pod='virt-handler-a', node='a'}":                 "1x30",
				"kube_pod_status_ready{namespace='kubevirt', pod='virt-handler-a', condition='true'}": "0x19 1x10",
				"kube_pod_info{namespace='ns', pod='virt-launcher-b', node='b'}":                      "1x30",
				"kube_pod_info{namespace='kubevirt', pod='virt-handler-b', node='b'}":                 "1x30",
				"kube_pod_status_ready{namespace='kubevirt', pod='virt-handler-b', condition='true'}": "1x30",
				// A tenant's Pod with the name of an agent is none.
				"kube_pod_info{namespace='ns', pod='virt-handler-x', node='a'}":                                    "1x30",
				"kube_pod_status_ready{namespace='ns', pod='virt-handler-x', condition='true'}":                    "1x30",
				"kube_pod_info{namespace='kubevirt', pod='virt-handler-without-guests', node='c'}":                 "1x30",
				"kube_pod_status_ready{namespace='kubevirt', pod='virt-handler-without-guests', condition='true'}": "0x30",
			}},
		{alert: "KubeVirtDeprecatedAPIRequested", silent: []string{"11m", "40m"}, firing: "15m",
			labels:      map[string]string{"group": "kubevirt.io", "version": "v1alpha3", "resource": "virtualmachines"},
			description: "In the last ten minutes, a client used virtualmachines.kubevirt.io/v1alpha3, which is deprecated.",
			series: map[string]string{
				"apiserver_requested_deprecated_apis{group='kubevirt.io', version='v1alpha3', resource='virtualmachines'}":  "1x60",
				"apiserver_request_total{group='kubevirt.io', version='v1alpha3', resource='virtualmachines', verb='GET'}":  "0x11 5x50",
				"apiserver_request_total{group='kubevirt.io', version='v1alpha3', resource='virtualmachines', verb='LIST'}": "0+5x60",
				"apiserver_request_total{group='kubevirt.io', version='v1', resource='virtualmachines', verb='GET'}":        "0+5x60",
			}},
	}
}
