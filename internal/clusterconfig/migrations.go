// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// defaultMigrations returns KubeVirt's defaults: pkg/virt-config, and for the downtime
// staging/src/kubevirt.io/api/core/v1/types.go.
func defaultMigrations() v1.MigrationConfiguration {
	return v1.MigrationConfiguration{
		NodeDrainTaintKey:                 ptr.To("kubevirt.io/drain"),
		ParallelOutboundMigrationsPerNode: ptr.To[uint32](2),
		ParallelMigrationsPerCluster:      ptr.To[uint32](5),
		AllowAutoConverge:                 ptr.To(false),
		BandwidthPerMigration:             ptr.To(resource.MustParse("0Mi")),
		CompletionTimeoutPerGiB:           ptr.To[int64](150),
		MaxDowntimeMs:                     ptr.To[uint64](900),
		ProgressTimeout:                   ptr.To[int64](150),
		UtilityVolumesTimeout:             ptr.To[int64](150),
		UnsafeMigrationOverride:           ptr.To(false),
		AllowPostCopy:                     ptr.To(false),
		AllowWorkloadDisruption:           ptr.To(false),
		DisableTLS:                        ptr.To(false),
		MatchSELinuxLevelOnMigration:      ptr.To(true),
	}
}

// migrations overrides the defaults with the fields that are set.
func (p *parser) migrations(m *v1.MigrationConfiguration, path *field.Path) {
	if m == nil {
		return
	}
	m, c := m.DeepCopy(), &p.config.Migrations
	override(&c.NodeDrainTaintKey, m.NodeDrainTaintKey)
	override(&c.ParallelOutboundMigrationsPerNode, m.ParallelOutboundMigrationsPerNode)
	override(&c.ParallelMigrationsPerCluster, m.ParallelMigrationsPerCluster)
	override(&c.AllowAutoConverge, m.AllowAutoConverge)
	override(&c.MaxDowntimeMs, m.MaxDowntimeMs)
	override(&c.UnsafeMigrationOverride, m.UnsafeMigrationOverride)
	// allowPostCopy is the default of allowWorkloadDisruption.
	override(&c.AllowWorkloadDisruption, m.AllowPostCopy)
	override(&c.AllowPostCopy, m.AllowPostCopy)
	override(&c.AllowWorkloadDisruption, m.AllowWorkloadDisruption)
	override(&c.DisableTLS, m.DisableTLS)
	override(&c.MatchSELinuxLevelOnMigration, m.MatchSELinuxLevelOnMigration)
	if m.Network != nil && *m.Network != "" {
		c.Network = m.Network
	}
	p.notNegative(&c.CompletionTimeoutPerGiB, m.CompletionTimeoutPerGiB, path.Child("completionTimeoutPerGiB"))
	p.notNegative(&c.ProgressTimeout, m.ProgressTimeout, path.Child("progressTimeout"))
	p.notNegative(&c.UtilityVolumesTimeout, m.UtilityVolumesTimeout, path.Child("utilityVolumesTimeout"))
	if b := m.BandwidthPerMigration; b != nil && b.Sign() < 0 {
		p.errs = append(p.errs,
			field.Invalid(path.Child("bandwidthPerMigration"), b.String(), "must not be negative; 0 is no limit"))
	} else {
		override(&c.BandwidthPerMigration, b)
	}
}

func override[T any](to **T, value *T) {
	if value != nil {
		*to = value
	}
}

func (p *parser) notNegative(to **int64, value *int64, path *field.Path) {
	if value != nil && *value < 0 {
		p.errs = append(p.errs, field.Invalid(path, *value, "must not be negative"))
		return
	}
	override(to, value)
}

// migrationNetwork returns the definition with the configured name, which is namespace/name or a name in the install
// namespace, as in KubeVirt.
func migrationNetwork(namespace string, named *string) types.NamespacedName {
	if named == nil {
		return types.NamespacedName{}
	}
	if other, name, found := strings.Cut(*named, "/"); found {
		return types.NamespacedName{Namespace: other, Name: name}
	}
	return types.NamespacedName{Namespace: namespace, Name: *named}
}
