// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package policy

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

type labelSet = map[string]string

func policy(name string, vmi, namespace labelSet) v1alpha1.MigrationPolicy {
	return v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.MigrationPolicySpec{
		Selectors: &v1alpha1.Selectors{VirtualMachineInstanceSelector: vmi, NamespaceSelector: namespace},
	}}
}

func TestChoose(t *testing.T) {
	vmi, namespace := labelSet{"a": "1", "b": "2"}, labelSet{"n": "1", "m": "2"}
	for name, tc := range map[string]struct {
		vmi, namespace labelSet
		policies       []v1alpha1.MigrationPolicy
		want           string
	}{
		"none at all":                       {vmi, namespace, nil, ""},
		"none that selects":                 {vmi, namespace, []v1alpha1.MigrationPolicy{policy("p", labelSet{"a": "2"}, nil)}, ""},
		"both selectors must match":         {vmi, namespace, []v1alpha1.MigrationPolicy{policy("p", labelSet{"a": "1"}, labelSet{"n": "9"})}, ""},
		"without labels it selects all":     {nil, nil, []v1alpha1.MigrationPolicy{policy("p", nil, nil)}, "p"},
		"without selectors it selects none": {vmi, namespace, []v1alpha1.MigrationPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}, ""},
		// KubeVirt skips both selectors for a VMI without labels.
		"a VMI without labels is selected by no label": {nil, namespace, []v1alpha1.MigrationPolicy{policy("p", labelSet{"a": "1"}, nil)}, ""},
		"a VMI without labels by its namespace":        {nil, namespace, []v1alpha1.MigrationPolicy{policy("p", nil, labelSet{"n": "9"}), policy("q", nil, labelSet{"n": "1"})}, "q"},
		"an empty value is a value":                    {labelSet{"a": ""}, nil, []v1alpha1.MigrationPolicy{policy("p", labelSet{"b": ""}, nil)}, ""},
		"most labels take precedence": {vmi, namespace, []v1alpha1.MigrationPolicy{
			policy("a", labelSet{"a": "1", "b": "2"}, nil), policy("z", labelSet{"a": "1"}, labelSet{"n": "1", "m": "2"}),
		}, "z"},
		"then most for the VMI": {vmi, namespace, []v1alpha1.MigrationPolicy{
			policy("a", labelSet{"a": "1"}, labelSet{"n": "1"}), policy("z", labelSet{"a": "1", "b": "2"}, nil),
		}, "z"},
		"then the name": {vmi, namespace, []v1alpha1.MigrationPolicy{
			policy("z", labelSet{"a": "1"}, nil), policy("y", labelSet{"b": "2"}, nil),
		}, "y"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if best := Choose(tc.policies, tc.vmi, tc.namespace); best != nil {
				got = best.Name
			}
			if got != tc.want {
				t.Errorf("chose %q, want %q", got, tc.want)
			}
		})
	}
}

// A field that is added to the cluster's configuration and not here would have no effect.
func TestAllClusterFieldsAreResolved(t *testing.T) {
	cluster := clusterconfig.Default().Migrations
	cluster.Network = ptr.To("net")
	got, name := Resolve(&cluster, nil)
	if name != nil {
		t.Errorf("policy %q though there is none", *name)
	}
	from, to := reflect.ValueOf(cluster), reflect.ValueOf(*got)
	for i := range from.NumField() {
		field := from.Type().Field(i).Name
		if !reflect.DeepEqual(from.Field(i).Interface(), to.FieldByName(field).Interface()) {
			t.Errorf("%s differs", field)
		}
		if from.Field(i).Pointer() == to.FieldByName(field).Pointer() {
			t.Errorf("%s is shared with the configuration", field)
		}
	}
}

func TestAllPolicyFieldsOverride(t *testing.T) {
	cluster := clusterconfig.Default().Migrations
	p := policy("p", nil, nil)
	p.Spec.AllowAutoConverge = ptr.To(true)
	p.Spec.BandwidthPerMigration = ptr.To(resource.MustParse("10Mi"))
	p.Spec.CompletionTimeoutPerGiB = ptr.To[int64](1)
	p.Spec.MaxDowntimeMs = ptr.To[uint64](2)
	p.Spec.AllowPostCopy = ptr.To(true)
	p.Spec.AllowWorkloadDisruption = ptr.To(true)
	p.Spec.ExperimentalMigrationOptions = &v1.ExperimentalMigrationOptions{Compression: ptr.To(v1.MigrationCompressionZstd)}
	got, name := Resolve(&cluster, &p)
	if name == nil || *name != "p" {
		t.Fatalf("the policy is not named: %v", name)
	}
	from, to := reflect.ValueOf(p.Spec), reflect.ValueOf(*got)
	for i := range from.NumField() {
		field := from.Type().Field(i).Name
		switch {
		case field == "Selectors":
		case from.Field(i).IsNil():
			t.Errorf("this test does not set %s", field)
		case !reflect.DeepEqual(from.Field(i).Interface(), to.FieldByName(field).Interface()):
			t.Errorf("%s does not override", field)
		}
	}
}

func TestEmptyPolicyIsNotReported(t *testing.T) {
	cluster, p := clusterconfig.Default().Migrations, policy("p", nil, nil)
	if _, name := Resolve(&cluster, &p); name != nil {
		t.Errorf("named %q", *name)
	}
}

func TestPolicyWithPostCopyAllowsDisruption(t *testing.T) {
	cluster, p := clusterconfig.Default().Migrations, policy("p", nil, nil)
	p.Spec.AllowPostCopy = ptr.To(true)
	if got, _ := Resolve(&cluster, &p); !*got.AllowWorkloadDisruption {
		t.Error("post-copy alone does not allow disruption")
	}
	p.Spec.AllowWorkloadDisruption = ptr.To(false)
	if got, _ := Resolve(&cluster, &p); *got.AllowWorkloadDisruption {
		t.Error("disruption is allowed although the policy disallows it")
	}
}
