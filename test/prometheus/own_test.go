// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package prometheus

// ownScenarios are those of the alerts that KubeVirt does not have.
func ownScenarios() []scenario {
	guest := map[string]string{"namespace": "ns", "name": "demo", "node": "a"}
	const authority = "vireo_authority_renewal_overdue{secret='kubevirt-virt-api-client-ca', pod='virt-controller-1'}"
	return []scenario{
		{alert: "VireoAuthorityNotRenewed", silent: []string{"9m", "26m"}, firing: "11m", labels: map[string]string{"secret": "kubevirt-virt-api-client-ca"},
			description: "The authority in Secret kubevirt-virt-api-client-ca has no successor, or cannot sign." +
				" When it expires, components cannot connect to each other.", series: map[string]string{
				// Another virt-controller becomes the leader meanwhile.
				authority: "0x4 1x3 _x20",
				"vireo_authority_renewal_overdue{secret='kubevirt-virt-api-client-ca', pod='virt-controller-2'}": "_x9 1x14 0x9",
				"vireo_authority_renewal_overdue{secret='kubevirt-controller-certs', pod='virt-controller-1'}":   "0x40",
			}},
		// It is renewed at once, late.
		{alert: "VireoAuthorityNotRenewed", silent: []string{"8m", "20m"}, series: map[string]string{authority: "0x4 1x3 0x20"}},
		{alert: "VireoAgentSilent", silent: []string{"5m", "12m"}, firing: "7m", labels: map[string]string{"node": "a"},
			summary:     "The state of 3 VMIs on node a is unknown: its virt-handler is silent.",
			description: "virt-handler on node a does not renew its Lease. Either only virt-handler has stopped, or the node is lost.",
			series: map[string]string{
				"vireo_node_silent_agent_vmis{node='a', pod='virt-controller-1'}": "0x4 3x5 0x9",
				"vireo_node_silent_agent_vmis{node='b', pod='virt-controller-1'}": "0x20",
			}},
		{alert: "VireoBrokerSilent", silent: []string{"6m", "12m"}, firing: "8m", labels: map[string]string{"node": "a"},
			summary:     "virt-broker on node a does not respond to virt-handler.",
			description: "No guest can be started or migrated on node a, and no console opens there, until its virt-broker runs.",
			series: map[string]string{
				"vireo_node_broker_silent{node='a', pod='virt-handler-a'}": "0x4 1x5 0x9",
				"vireo_node_broker_silent{node='b', pod='virt-handler-b'}": "0x20",
			}},
		// It is replaced, and its virt-handler was restarted meanwhile.
		{alert: "VireoBrokerSilent", silent: []string{"5m", "7m", "12m"}, series: map[string]string{
			"vireo_node_broker_silent{node='a', pod='virt-handler-a'}": "0x4 1 0x9",
		}},
		{alert: "VireoGuestFrozenTooLong", silent: []string{"6m", "20m"}, firing: "8m", labels: guest, series: map[string]string{
			demo("vireo_vmi_freeze_overdue_seconds", ", pod='virt-handler-a'"): "0x4 0+60x10 stale",
		}, description: "The guest of VMI ns/demo on node a should have been thawed 3m 0s ago, and cannot write to its disks."},
		// It is thawed soon after the limit.
		{alert: "VireoGuestFrozenTooLong", silent: []string{"6m", "7m", "10m"}, series: map[string]string{
			demo("vireo_vmi_freeze_overdue_seconds", ""): "0x4 30 stale",
		}},
		{alert: "VireoGuestOwnerUndecided", silent: []string{"6m", "20m"}, firing: "8m", labels: guest, series: map[string]string{
			demo("vireo_vmi_owner_undecided", ", pod='virt-handler-a'"): "_x5 1x10 stale",
		}, description: "VMI ns/demo has a paused guest on node a, which waits for the other node of its migration."},
		// A scrape during the switch of a migration that succeeds.
		{alert: "VireoGuestOwnerUndecided", silent: []string{"6m", "8m"}, series: map[string]string{
			demo("vireo_vmi_owner_undecided", ""): "_x5 1 stale",
		}},
	}
}
