// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func TestMaxDowntimeNeedsItsGate(t *testing.T) {
	const refusal = "maxDowntimeMs cannot be modified without enabling the MigrationStallDetection feature gate"
	check := func(name string, err error, refused bool) {
		t.Helper()
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), refusal) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	gate := []string{"MigrationStallDetection"}
	for name, tc := range map[string]struct {
		before, after *uint64
		gates         []string
		refused       bool
	}{
		"nothing":                  {},
		"it is set":                {after: ptr.To[uint64](900), refused: true},
		"it is set with the gate":  {after: ptr.To[uint64](900), gates: gate},
		"it stays":                 {before: ptr.To[uint64](900), after: ptr.To[uint64](900)},
		"it changes":               {before: ptr.To[uint64](500), after: ptr.To[uint64](900), refused: true},
		"it changes with the gate": {before: ptr.To[uint64](500), after: ptr.To[uint64](900), gates: gate},
		"it is taken away":         {before: ptr.To[uint64](500)},
	} {
		kubeVirt := func(limit *uint64) *v1.KubeVirt {
			kv := &v1.KubeVirt{}
			kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: tc.gates}
			kv.Spec.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{MaxDowntimeMs: limit,
				AllowAutoConverge: ptr.To(limit == nil)}
			return kv
		}
		_, err := (&kubeVirtValidator{}).ValidateUpdate(t.Context(), kubeVirt(tc.before), kubeVirt(tc.after))
		check("KubeVirt: "+name, err, tc.refused)

		config := clusterconfig.Default()
		config.FeatureGates = clusterconfig.NewFeatureGates(tc.gates, nil)
		policies := &migrationPolicyValidator{config: fixedConfig{config}}
		policy := func(limit *uint64) *v1alpha1.MigrationPolicy {
			return &v1alpha1.MigrationPolicy{Spec: v1alpha1.MigrationPolicySpec{MaxDowntimeMs: limit}}
		}
		_, err = policies.ValidateUpdate(t.Context(), policy(tc.before), policy(tc.after))
		check("MigrationPolicy: "+name, err, tc.refused)
		if tc.before == nil {
			_, err = policies.ValidateCreate(t.Context(), policy(tc.after))
			check("new MigrationPolicy: "+name, err, tc.refused)
		}
	}
}

func TestStallDetectorNeedsItsGate(t *testing.T) {
	const refusal = "experimental.stallDetector cannot be modified without enabling the MigrationStallDetection feature gate"
	policy := func(margin int64) *v1alpha1.MigrationPolicy {
		return &v1alpha1.MigrationPolicy{
			Spec: v1alpha1.MigrationPolicySpec{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{
				StallDetector: &v1.StallDetectorOptions{StallMargin: &margin},
			}}}
	}
	for _, gates := range [][]string{nil, {"MigrationStallDetection"}} {
		config := clusterconfig.Default()
		config.FeatureGates = clusterconfig.NewFeatureGates(gates, nil)
		policies := &migrationPolicyValidator{config: fixedConfig{config}}
		_, created := policies.ValidateCreate(t.Context(), policy(5))
		_, changed := policies.ValidateUpdate(t.Context(), policy(4), policy(5))
		for name, err := range map[string]error{"new": created, "changed": changed} {
			if (err == nil) != (gates != nil) || err != nil && !strings.Contains(err.Error(), refusal) {
				t.Errorf("%s with gates %v: %v", name, gates, err)
			}
		}
		_, kept := policies.ValidateUpdate(t.Context(), policy(5), policy(5))
		_, removed := policies.ValidateUpdate(t.Context(), policy(5), &v1alpha1.MigrationPolicy{})
		if kept != nil || removed != nil {
			t.Errorf("with gates %v: %v, %v", gates, kept, removed)
		}
	}
}
