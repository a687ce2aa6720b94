// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package migrationpolicy finds out how a guest migrates: by the cluster's configuration and by the one MigrationPolicy that
// selects the VMI best. It is pure.
package migrationpolicy

import (
	"slices"

	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Choose returns the policy that holds for a VMI, or nil. It is the one with the most labels in its selectors among those that
// select the VMI and its namespace; of several, the one with the most labels for the VMI; of those, the first by name.
func Choose(policies []v1alpha1.MigrationPolicy, vmi, namespace map[string]string) *v1alpha1.MigrationPolicy {
	var best *v1alpha1.MigrationPolicy
	for i := range policies {
		policy := &policies[i]
		if selects(policy.Spec.Selectors, vmi, namespace) && (best == nil || beats(policy, best)) {
			best = policy
		}
	}
	return best
}

// selects says that each label that the selectors ask for is there. A policy without selectors, which the schema refuses, selects
// nothing.
func selects(s *v1alpha1.Selectors, vmi, namespace map[string]string) bool {
	return s != nil && has(vmi, s.VirtualMachineInstanceSelector) && has(namespace, s.NamespaceSelector)
}

func has(labels map[string]string, wanted v1alpha1.LabelSelector) bool {
	for key, value := range wanted {
		if actual, ok := labels[key]; !ok || actual != value {
			return false
		}
	}
	return true
}

func beats(a, b *v1alpha1.MigrationPolicy) bool {
	vmiA, vmiB := len(a.Spec.Selectors.VirtualMachineInstanceSelector), len(b.Spec.Selectors.VirtualMachineInstanceSelector)
	allA, allB := vmiA+len(a.Spec.Selectors.NamespaceSelector), vmiB+len(b.Spec.Selectors.NamespaceSelector)
	switch {
	case allA != allB:
		return allA > allB
	case vmiA != vmiB:
		return vmiA > vmiB
	default:
		return a.Name < b.Name
	}
}

// Resolve lays a policy, or nil, over the cluster's configuration, and names the policy if it says anything. Nothing of the result
// is shared with the arguments.
func Resolve(cluster *v1.MigrationConfiguration, policy *v1alpha1.MigrationPolicy) (*v1.VMIMConfigurationOptions, *string) {
	c := cluster.DeepCopy()
	out := &v1.VMIMConfigurationOptions{
		NodeDrainTaintKey:                 c.NodeDrainTaintKey,
		ParallelOutboundMigrationsPerNode: c.ParallelOutboundMigrationsPerNode,
		ParallelMigrationsPerCluster:      c.ParallelMigrationsPerCluster,
		AllowAutoConverge:                 c.AllowAutoConverge,
		BandwidthPerMigration:             c.BandwidthPerMigration,
		CompletionTimeoutPerGiB:           c.CompletionTimeoutPerGiB,
		MaxDowntimeMs:                     c.MaxDowntimeMs,
		ProgressTimeout:                   c.ProgressTimeout,
		UtilityVolumesTimeout:             c.UtilityVolumesTimeout,
		UnsafeMigrationOverride:           c.UnsafeMigrationOverride,
		AllowPostCopy:                     c.AllowPostCopy,
		AllowWorkloadDisruption:           c.AllowWorkloadDisruption,
		DisableTLS:                        c.DisableTLS,
		Network:                           c.Network,
		MatchSELinuxLevelOnMigration:      c.MatchSELinuxLevelOnMigration,
	}
	if policy == nil || !override(out, policy.Spec.DeepCopy()) {
		return out, nil
	}
	return out, ptr.To(policy.Name)
}

// override says whether the policy sets anything.
func override(out *v1.VMIMConfigurationOptions, spec *v1alpha1.MigrationPolicySpec) bool {
	disruption := spec.AllowWorkloadDisruption
	if disruption == nil {
		disruption = spec.AllowPostCopy
	}
	return slices.Contains([]bool{
		set(&out.AllowAutoConverge, spec.AllowAutoConverge),
		set(&out.BandwidthPerMigration, spec.BandwidthPerMigration),
		set(&out.CompletionTimeoutPerGiB, spec.CompletionTimeoutPerGiB),
		set(&out.MaxDowntimeMs, spec.MaxDowntimeMs),
		set(&out.AllowPostCopy, spec.AllowPostCopy),
		set(&out.AllowWorkloadDisruption, disruption),
		set(&out.ExperimentalMigrationOptions, spec.ExperimentalMigrationOptions),
	}, true)
}

func set[T any](to **T, value *T) bool {
	if value == nil {
		return false
	}
	*to = value
	return true
}
