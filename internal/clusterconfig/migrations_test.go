// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func migrations(t *testing.T, m *v1.MigrationConfiguration) v1.MigrationConfiguration {
	t.Helper()
	got, err := FromKubeVirt(kubeVirt(func(s *v1.KubeVirtSpec) { s.Configuration.MigrationConfiguration = m }))
	if err != nil {
		t.Fatal(err)
	}
	return got.Migrations
}

// Readers dereference every pointer without a check.
func TestEveryFieldOfMigrationsHasADefault(t *testing.T) {
	for _, m := range []*v1.MigrationConfiguration{nil, {}} {
		got := reflect.ValueOf(migrations(t, m))
		for i := range got.NumField() {
			name := got.Type().Field(i).Name
			if got.Field(i).IsNil() != (name == "Network") {
				t.Errorf("%s is nil: %v", name, got.Field(i).IsNil())
			}
		}
	}
}

// A new field that is not copied to the configuration fails this test.
func TestEveryFieldOfMigrationsIsRead(t *testing.T) {
	configured := v1.MigrationConfiguration{
		NodeDrainTaintKey: ptr.To("drain"), ParallelOutboundMigrationsPerNode: ptr.To[uint32](7),
		ParallelMigrationsPerCluster: ptr.To[uint32](8),
		AllowAutoConverge:            ptr.To(true), BandwidthPerMigration: ptr.To(resource.MustParse("64Mi")),
		CompletionTimeoutPerGiB: ptr.To[int64](9),
		MaxDowntimeMs:           ptr.To[uint64](10), ProgressTimeout: ptr.To[int64](11),
		UtilityVolumesTimeout:   ptr.To[int64](12),
		UnsafeMigrationOverride: ptr.To(true), AllowPostCopy: ptr.To(true), AllowWorkloadDisruption: ptr.To(true),
		DisableTLS: ptr.To(true), Network: ptr.To("net"), MatchSELinuxLevelOnMigration: ptr.To(false),
	}
	want := reflect.ValueOf(configured)
	for i := range want.NumField() {
		if want.Field(i).IsNil() {
			t.Errorf("this test does not set %s", want.Type().Field(i).Name)
		}
	}
	if got := migrations(t, &configured); !reflect.DeepEqual(got, configured) {
		t.Errorf("got %+v", got)
	}
}

func TestAllowPostCopyIsTheDefaultOfAllowWorkloadDisruption(t *testing.T) {
	if got := migrations(t, &v1.MigrationConfiguration{AllowPostCopy: ptr.To(true)}); !*got.AllowWorkloadDisruption {
		t.Error("allowPostCopy does not set allowWorkloadDisruption")
	}
	got := migrations(t, &v1.MigrationConfiguration{AllowPostCopy: ptr.To(true), AllowWorkloadDisruption: ptr.To(false)})
	if *got.AllowWorkloadDisruption {
		t.Error("allowPostCopy overrides allowWorkloadDisruption")
	}
}

func TestNetworkOfMigrations(t *testing.T) {
	for name, tc := range map[string]struct {
		network *string
		want    types.NamespacedName
	}{
		"none":                 {nil, types.NamespacedName{}},
		"one of the install's": {ptr.To("wire"), types.NamespacedName{Namespace: "kubevirt", Name: "wire"}},
		"one of another":       {ptr.To("net/wire"), types.NamespacedName{Namespace: "net", Name: "wire"}},
	} {
		t.Run(name, func(t *testing.T) {
			kv := kubeVirt(func(s *v1.KubeVirtSpec) {
				s.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{Network: tc.network}
			})
			kv.Namespace = "kubevirt"
			got, err := FromKubeVirt(kv)
			if err != nil || got.MigrationNetwork != tc.want {
				t.Errorf("got %v and %v, want %v", got.MigrationNetwork, err, tc.want)
			}
		})
	}
}

func TestNegativeValuesAreInvalid(t *testing.T) {
	got, err := FromKubeVirt(kubeVirt(func(s *v1.KubeVirtSpec) {
		s.Configuration.MigrationConfiguration = &v1.MigrationConfiguration{
			CompletionTimeoutPerGiB: ptr.To[int64](-1), BandwidthPerMigration: ptr.To(resource.MustParse("-1Mi")),
		}
	}))
	for _, path := range []string{"spec.configuration.migrations.completionTimeoutPerGiB",
		"spec.configuration.migrations.bandwidthPerMigration"} {
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s is not named in %v", path, err)
		}
	}
	if *got.Migrations.CompletionTimeoutPerGiB != 150 || !got.Migrations.BandwidthPerMigration.IsZero() {
		t.Error("an invalid value is used")
	}
}
