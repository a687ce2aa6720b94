// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package policy determines how long a transfer may take, and the configuration of a migration, from the cluster's configuration and the
// MigrationPolicy that matches the VMI best. It is pure.
package policy

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Choose returns the policy that applies to a VMI, or nil. Of the policies that select the VMI and its namespace, it is the one with
// the most labels in its selectors. Ties are broken by the number of labels for the VMI, and then by name.
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

// selects reports whether the selectors match the labels of VMI and namespace. A policy without selectors, which the schema rejects,
// selects nothing.
func selects(s *v1alpha1.Selectors, vmi, namespace map[string]string) bool {
	return s != nil && labels.SelectorFromSet(labels.Set(s.VirtualMachineInstanceSelector)).Matches(labels.Set(vmi)) &&
		labels.SelectorFromSet(labels.Set(s.NamespaceSelector)).Matches(labels.Set(namespace))
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

// Resolve returns the cluster's configuration, overridden by the fields of a policy, which may be nil, and the policy's name if it sets any
// field. The result shares no memory with the arguments.
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

// override sets the fields of the policy, and reports whether there are any.
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
