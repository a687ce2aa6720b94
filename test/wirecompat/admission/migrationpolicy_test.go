// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
)

// KubeVirt: pkg/virt-api/webhooks/validating-webhook/admitters/migrationpolicy-admitter_test.go
func TestMigrationPolicies(t *testing.T) {
	policy := func(change func(*v1alpha1.MigrationPolicySpec)) *v1alpha1.MigrationPolicy {
		p := &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-"}}
		p.Spec.Selectors = &v1alpha1.Selectors{}
		change(&p.Spec)
		return p
	}
	timeout := func(seconds int64) *v1alpha1.MigrationPolicy {
		return policy(func(s *v1alpha1.MigrationPolicySpec) { s.CompletionTimeoutPerGiB = ptr.To(seconds) })
	}
	bandwidth := func(value string) *v1alpha1.MigrationPolicy {
		return policy(func(s *v1alpha1.MigrationPolicySpec) { s.BandwidthPerMigration = ptr.To(resource.MustParse(value)) })
	}
	decide(t, []testCase{
		{name: "policy without limits", object: policy(func(*v1alpha1.MigrationPolicySpec) {})},
		{name: "no time for each GiB", object: timeout(0)},
		{name: "negative time for each GiB", object: timeout(-1), fields: []string{"spec.completionTimeoutPerGiB"}, says: "must not be negative"},
		{name: "no limit of the bandwidth", object: bandwidth("0")},
		{name: "bandwidth", object: bandwidth("64Mi")},
		{name: "negative bandwidth", object: bandwidth("-1"), fields: []string{"spec.bandwidthPerMigration"}, says: "must not be negative"},
	})
}
