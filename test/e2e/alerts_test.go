// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package e2e

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/vireo-project/vireo/internal/controller/install/kubevirt/rules"
)

// The account of Prometheus may only find the components, so the metrics of kube-state-metrics, the kubelet and the API
// server are missing. The tables are valid only while they are.

// withoutSeries contains the recording rules that have no series here, by the missing metric.
var withoutSeries = map[string][]string{
	"kube_node_status_allocatable": {"cluster:kubevirt_nodes_allocatable:count", "kubevirt_allocatable_nodes"},
	"apiserver_requested_deprecated_apis": {
		"cluster:kubevirt_api_request_deprecated_total:sum", "kubevirt_api_request_deprecated_total",
	},
	"kube_pod_container_resource_requests": {
		"container:kubevirt_memory_delta_from_requested_bytes:max", "kubevirt_memory_delta_from_requested_bytes",
		"pod_container:kubevirt_vm_memory_request_margin_based_on_rss_bytes:sum",
		"pod_container:kubevirt_vm_memory_request_margin_based_on_working_set_bytes:sum",
		"kubevirt_vm_container_memory_request_margin_based_on_rss_bytes",
		"kubevirt_vm_container_memory_request_margin_based_on_working_set_bytes",
	},
	"kube_persistentvolumeclaim_labels": {
		"pvc:kubevirt_vmsnapshot_labels:info", "kubevirt_vmsnapshot_persistentvolumeclaim_labels",
		"vm:kubevirt_vmsnapshot_disks_restored:sum", "kubevirt_vmsnapshot_disks_restored_from_source",
		"vm:kubevirt_vmsnapshot_restored_bytes:sum", "kubevirt_vmsnapshot_disks_restored_from_source_bytes",
	},
}

// notProvoked contains the alerts that cannot fire here, by the missing metric.
var notProvoked = map[string][]string{
	"kube_deployment_spec_replicas":      {"LowVirtAPICount", "LowVirtControllersCount", "LowVirtOperatorCount"},
	"kube_daemonset_status_number_ready": {"VirtHandlerDaemonSetRolloutFailing"},
	// If it is missing, a Pod that cannot be scraped does not count as running.
	"kube_pod_status_phase": {
		"LowReadyVirtAPICount", "LowReadyVirtControllersCount", "LowReadyVirtHandlerCount", "LowReadyVirtOperatorsCount",
		"VirtLauncherPodsStuckFailed",
	},
	"kube_pod_info":                       {"OrphanedVirtualMachineInstances"},
	"kube_node_status_allocatable":        {"LowKVMNodesCount", "KubeVirtNoAvailableNodesToRunVMs"},
	"apiserver_requested_deprecated_apis": {"KubeVirtDeprecatedAPIRequested"},
}

// tooSlow contains the alerts whose cause takes minutes. Only test/prometheus makes them fire.
var tooSlow = map[string]string{
	"VirtApiRESTErrorsBurst":                  "four fifths of all requests fail",
	"VirtControllerRESTErrorsBurst":           "four fifths of all requests fail",
	"VirtHandlerRESTErrorsBurst":              "four fifths of all requests fail",
	"VirtOperatorRESTErrorsBurst":             "four fifths of all requests fail",
	"KubeVirtVMIExcessiveMigrations":          "a guest migrates twelve times",
	"OutdatedVirtualMachineInstanceWorkloads": "virt-controller is replaced by one with another launcher image",
	"KubeVirtVMGuestMemoryPressure":           "a guest swaps without a pause",
	"VMNonRecoverableOSPanic":                 "a guest crashes six times",
	"VireoAgentSilent":                        "an agent does not renew its Lease until that has expired",
	"VireoBrokerSilent":                       "a broker is missing for longer than the kubelet takes to start it again",
	"VireoAuthorityNotRenewed":                "an authority is not renewed for days",
	"VireoGuestFrozenTooLong":                 "a guest stays frozen after the limit of its freeze",
	"VireoGuestOwnerUndecided":                "both agents of a migration wait for a person",
}

// guestAlerts fire because of the guests busy and low, and of the VM held.
var guestAlerts = []string{
	"VMCannotBeEvicted/warning busy",
	"GuestFilesystemAlmostOutOfSpace/warning busy",
	"GuestFilesystemAlmostOutOfSpace/critical busy",
	"GuestVCPUQueueHighWarning/warning busy",
	"GuestVCPUQueueHighCritical/critical busy",
	"KubeVirtVMGuestMemoryAvailableLow/info low",
	"VirtualMachineStuckInUnhealthyState/warning held",
}

// stopAlert fires while the guest busy does not shut down.
const stopAlert = "VirtualMachineStuckOnNode/warning busy"

// componentAlerts fire while no process of any component responds.
var componentAlerts = []string{
	"VirtAPIDown/critical", "NoReadyVirtAPI/critical",
	"VirtHandlerDown/critical", "NoReadyVirtHandler/critical",
	"VirtControllerDown/critical", "NoReadyVirtController/critical",
	"VirtOperatorDown/critical", "NoReadyVirtOperator/critical", "NoLeadingVirtOperator/critical",
}

// expectRecorded waits until each recording rule has had a value, except for those whose metric is missing.
func expectRecorded(ctx context.Context, p prometheusServer, recordings []rules.Rule) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		missing := map[string]bool{}
		for i := range recordings {
			if name := recordings[i].Record; !p.hasSeries(ctx, g, name) {
				missing[name] = true
			}
		}
		g.Expect(slices.Sorted(maps.Keys(missing))).To(Equal(sortedValues(withoutSeries)), "recording rules without a value")
	}).WithContext(ctx).WithTimeout(shortTimeout).WithPolling(time.Second).Should(Succeed())
	expectMissing(ctx, p, withoutSeries)
}

// expectMissing checks that the metrics of a table of exceptions are still missing.
func expectMissing(ctx context.Context, p prometheusServer, table map[string][]string) {
	GinkgoHelper()
	for metric, rules := range table {
		Expect(p.hasSeries(ctx, Default, metric)).To(BeFalse(), "there is %s: remove %v from the exceptions", metric, rules)
	}
}

// expectAllAlertsCovered checks that each alert is provoked by a spec, or has a reason why it is not.
func expectAllAlertsCovered(ctx context.Context, p prometheusServer, alerts []rules.Rule) {
	GinkgoHelper()
	installed, covered := map[string]bool{}, map[string]bool{}
	for i := range alerts {
		installed[alerts[i].Alert] = true
	}
	for _, alert := range slices.Concat(guestAlerts, componentAlerts, []string{stopAlert}) {
		name, _, _ := strings.Cut(alert, "/")
		covered[name] = true
	}
	for name := range tooSlow {
		covered[name] = true
	}
	for _, name := range sortedValues(notProvoked) {
		covered[name] = true
	}
	Expect(slices.Sorted(maps.Keys(covered))).To(Equal(slices.Sorted(maps.Keys(installed))))
	expectMissing(ctx, p, notProvoked)
}

func sortedValues(table map[string][]string) []string {
	var all []string
	for _, values := range table {
		all = append(all, values...)
	}
	slices.Sort(all)
	return all
}
