// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package rules contains Prometheus' recording and alerting rules as a table, with KubeVirt's names and meanings, and a
// few alerts of our own. It is pure: the reconciler installs them as a PrometheusRule, and the tests load the same
// rules into promtool and Prometheus.
package rules

import (
	"fmt"
	"strings"
)

// DefaultRunbookURL is the template of the addresses of runbooks. It contains one %s, for the alert's name.
const DefaultRunbookURL = "https://github.com/vireo-project/vireo/blob/main/docs/runbooks/%s.md"

// Names of the groups, as in KubeVirt.
const (
	RecordingGroup = "recordingRules.rules"
	AlertGroup     = "alerts.rules"
)

// Values of the labels severity and operator_health_impact.
const (
	critical = "critical"
	warning  = "warning"
	info     = "info"
	none     = "none"
)

// Settings are what the rules depend on.
type Settings struct {
	// Namespace is the install namespace.
	Namespace string
	// RunbookURL is a template with one %s, for the alert's name. Empty means DefaultRunbookURL.
	RunbookURL string
}

// CheckRunbookURL returns an error unless a template of addresses of runbooks is usable.
func CheckRunbookURL(template string) error {
	if template != "" && strings.Count(template, "%s") != 1 {
		return fmt.Errorf("the template of runbook URLs %q must contain one %%s, for the alert's name", template)
	}
	return nil
}

// File is the content of a file of rules for Prometheus, and the spec of a PrometheusRule.
type File struct {
	Groups []Group `json:"groups"`
}

// Group is a list of rules that are evaluated in order.
type Group struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Rule either records the value of an expression as a metric, or alerts when the expression has a value.
type Rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// All returns all rules. Recording rules come first, because alerts use their values.
func All(s Settings) File {
	recording := append(components(s.Namespace), cluster(s.Namespace)...)
	recording = append(append(recording, guests()...), snapshots()...)
	recording = append(recording, deprecated()...)
	alerting := append(componentAlerts(s.Namespace), clusterAlerts(s.Namespace)...)
	alerting = append(append(alerting, guestAlerts()...), ownAlerts()...)
	return File{Groups: []Group{
		{Name: RecordingGroup, Rules: recording},
		{Name: AlertGroup, Rules: complete(alerting, s.RunbookURL)},
	}}
}

// Alerts returns the rules that alert.
func (f File) Alerts() []Rule { return f.Groups[1].Rules }

// Recordings returns the rules that record.
func (f File) Recordings() []Rule { return f.Groups[0].Rules }

// alert is one row of the tables of alerts.
type alert struct {
	name, expr, duration string
	// severity is how urgent it is for the person on call; impact is the effect on the installation as a whole.
	severity, impact     string
	summary, description string
}

// complete turns rows into rules, with the labels and annotations that all alerts have.
func complete(rows []alert, runbookURL string) []Rule {
	if runbookURL == "" {
		runbookURL = DefaultRunbookURL
	}
	out := make([]Rule, 0, len(rows))
	for _, row := range rows {
		annotations := map[string]string{"summary": row.summary,
			"runbook_url": strings.ReplaceAll(runbookURL, "%s", row.name)}
		if row.description != "" {
			annotations["description"] = row.description
		}
		out = append(out, Rule{Alert: row.name, Expr: row.expr, For: row.duration, Annotations: annotations,
			Labels: map[string]string{
				"severity": row.severity, "operator_health_impact": row.impact,
				"kubernetes_operator_part_of": "kubevirt", "kubernetes_operator_component": "kubevirt",
			}})
	}
	return out
}

// fill replaces {name} in a template by the values.
func fill(template string, values map[string]string) string {
	pairs := make([]string, 0, 2*len(values))
	for name, value := range values {
		pairs = append(pairs, "{"+name+"}", value)
	}
	return strings.NewReplacer(pairs...).Replace(template)
}

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
			alert{c.title + "Down", count + "_pods_running:count == 0", "10m", critical, critical, "No Pod of " + who + " runs.",
				""},
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
				c.low, fmt.Sprintf("%s_up:sum < on() 0.75 * sum(kube_deployment_spec_replicas{namespace='%s', deployment='%s'})",
					count, namespace, c.process),
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
			"(cluster:kubevirt_nodes_allocatable:count > 1 and cluster:kubevirt_nodes_with_kvm:count < 2) unless on() " +
				emulation,
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
			"VirtLauncherPodsStuckFailed", "sum(kube_pod_status_phase{phase='Failed', pod=~'virt-launcher-.*'}) >= 200", "10m",
			critical, critical, "{{ $value }} launcher Pods have failed and are not deleted.",
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

// ownAlerts are about promises of Vireo that KubeVirt does not make, so KubeVirt has no such alerts. Their names start
// with Vireo, and so do those of their metrics. A component's Pods may be replaced meanwhile, so the label of the Pod
// is removed.
func ownAlerts() []alert {
	return []alert{
		{
			"VireoAuthorityNotRenewed", "max by(secret) (vireo_authority_renewal_overdue) == 1", "5m", critical, warning,
			"An authority for certificates was not renewed by half of its overlap.",
			"The authority in Secret {{ $labels.secret }} has no successor, or cannot sign. When it expires, components cannot connect to each other.",
		},
		{
			"VireoAgentSilent", "max by(node) (vireo_node_silent_agent_vmis) > 0", "1m", critical, warning,
			"The state of {{ $value }} VMIs on node {{ $labels.node }} is unknown: its virt-handler is silent.",
			"virt-handler on node {{ $labels.node }} does not renew its Lease. Either only virt-handler has stopped, or the node is lost.",
		},
		{
			"VireoBrokerSilent", "max by(node) (vireo_node_broker_silent) == 1", "2m", critical, warning,
			"virt-broker on node {{ $labels.node }} does not respond to virt-handler.",
			"No guest can be started or migrated on node {{ $labels.node }}, and no console opens there, until its virt-broker runs.",
		},
		{
			"VireoGuestFrozenTooLong", "max by(namespace, name, node) (vireo_vmi_freeze_overdue_seconds) > 0", "2m", warning,
			none, "A guest's file systems are still frozen after the time limit of the freeze.",
			"The guest of VMI {{ $labels.namespace }}/{{ $labels.name }} on node {{ $labels.node }} should have been thawed" +
				" {{ $value | humanizeDuration }} ago, and cannot write to its disks.",
		},
		{
			"VireoGuestOwnerUndecided", "max by(namespace, name, node) (vireo_vmi_owner_undecided) == 1", "2m", critical, none,
			"A migration has paused a guest, and it is not certain which node may let it run.",
			"VMI {{ $labels.namespace }}/{{ $labels.name }} has a paused guest on node {{ $labels.node }}, which waits for the other node of its migration.",
		},
	}
}
