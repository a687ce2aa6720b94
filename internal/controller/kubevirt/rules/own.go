// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rules

// ownAlerts are about promises of Vireo that KubeVirt does not make, so KubeVirt has no such alerts. Their names start with Vireo, and
// so do those of their metrics. A component's Pods may be replaced meanwhile, so the label of the Pod is removed.
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
			"VireoGuestFrozenTooLong", "max by(namespace, name, node) (vireo_vmi_freeze_overdue_seconds) > 0", "2m", warning, none,
			"A guest's file systems are still frozen after the time limit of the freeze.",
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
