// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rules

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// names are KubeVirt 1.9's alerts.
const names = `
	GuestFilesystemAlmostOutOfSpace GuestFilesystemAlmostOutOfSpace GuestVCPUQueueHighCritical GuestVCPUQueueHighWarning
	KubeVirtDeprecatedAPIRequested KubeVirtNoAvailableNodesToRunVMs KubeVirtVMGuestMemoryAvailableLow
	KubeVirtVMGuestMemoryPressure KubeVirtVMIExcessiveMigrations LowKVMNodesCount LowReadyVirtAPICount
	LowReadyVirtControllersCount LowReadyVirtHandlerCount LowReadyVirtOperatorsCount LowVirtAPICount
	LowVirtControllersCount LowVirtOperatorCount NoLeadingVirtOperator NoReadyVirtAPI NoReadyVirtController
	NoReadyVirtHandler NoReadyVirtOperator OrphanedVirtualMachineInstances OutdatedVirtualMachineInstanceWorkloads
	VMCannotBeEvicted VMNonRecoverableOSPanic VirtAPIDown VirtApiRESTErrorsBurst VirtControllerDown
	VirtControllerRESTErrorsBurst VirtHandlerDaemonSetRolloutFailing VirtHandlerDown VirtHandlerRESTErrorsBurst
	VirtLauncherPodsStuckFailed VirtOperatorDown VirtOperatorRESTErrorsBurst VirtualMachineStuckInUnhealthyState
	VirtualMachineStuckOnNode`

// ownNames are the alerts that KubeVirt does not have.
const ownNames = "VireoAgentSilent VireoAuthorityNotRenewed VireoBrokerSilent VireoGuestFrozenTooLong VireoGuestOwnerUndecided"

func TestAlertsHaveKubeVirtsNamesAndLabels(t *testing.T) {
	var got []string
	for _, rule := range All(Settings{Namespace: "kubevirt"}).Alerts() {
		got = append(got, rule.Alert)
		for label, values := range map[string][]string{
			"severity": {critical, warning, info}, "operator_health_impact": {critical, warning, none},
			"kubernetes_operator_part_of": {"kubevirt"}, "kubernetes_operator_component": {"kubevirt"},
		} {
			if !slices.Contains(values, rule.Labels[label]) {
				t.Errorf("%s has %s=%q", rule.Alert, label, rule.Labels[label])
			}
		}
		if rule.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", rule.Alert)
		}
	}
	slices.Sort(got)
	if diff := cmp.Diff(slices.Sorted(slices.Values(strings.Fields(names+" "+ownNames))), got); diff != "" {
		t.Errorf("alerts (-expected +ours):\n%s", diff)
	}
}

func TestRulesFollowTheSettings(t *testing.T) {
	file := All(Settings{Namespace: "elsewhere", RunbookURL: "https://e.org/%s?from=alert"})
	text, err := yaml.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "namespace='kubevirt'") || !strings.Contains(string(text), "namespace='elsewhere'") {
		t.Error("the rules do not follow the install namespace")
	}
	for _, rule := range file.Alerts() {
		if want := "https://e.org/" + rule.Alert + "?from=alert"; rule.Annotations["runbook_url"] != want {
			t.Errorf("the runbook of %s is %s", rule.Alert, rule.Annotations["runbook_url"])
		}
	}
}

func TestRunbookURLHasOnePlaceForTheName(t *testing.T) {
	for template, valid := range map[string]bool{
		"": true, DefaultRunbookURL: true, "https://e.org": false, "https://e.org/%s/%s": false, "https://e.org/%d": false, "https://e.org/%20/%s": true,
	} {
		if err := CheckRunbookURL(template); (err == nil) != valid {
			t.Errorf("%q: %v", template, err)
		}
	}
}
