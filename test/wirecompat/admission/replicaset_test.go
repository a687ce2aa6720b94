// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// replicaSet returns a replica set of valid VMIs with the label app=a, after a change and options.
func replicaSet(
	change func(*v1.VirtualMachineInstanceReplicaSetSpec), options ...option,
) *v1.VirtualMachineInstanceReplicaSet {
	object := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "set",
		Namespace: metav1.NamespaceDefault}}
	object.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	object.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "a", "tier": "web"}}, Spec: vmi(options...).Spec,
	}
	change(&object.Spec)
	return object
}

func TestReplicaSets(t *testing.T) {
	type setSpec = v1.VirtualMachineInstanceReplicaSetSpec
	same := func(*setSpec) {}
	requirement := func(r metav1.LabelSelectorRequirement) func(*setSpec) {
		return func(s *setSpec) {
			s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{r}}
		}
	}
	badName := with(func(s *spec) { s.Hostname = "web.1" })
	changed := func(change func(*setSpec)) func(client.Object) {
		return func(o client.Object) { change(&o.(*v1.VirtualMachineInstanceReplicaSet).Spec) }
	}
	decide(t, []testCase{
		{name: "set", object: replicaSet(same)},
		{name: "set of none", object: replicaSet(func(s *setSpec) { s.Replicas = ptr.To(int32(0)) })},
		{name: "guest with a fault", object: replicaSet(same, badName), fields: []string{"spec.template.spec.hostname"}},
		{name: "selector of other labels", object: replicaSet(func(s *setSpec) { s.Selector.MatchLabels = map[string]string{"app": "b"} }),
			fields: []string{"spec.selector"}, says: "selector does not match labels."},
		{name: "template without labels", object: replicaSet(func(s *setSpec) { s.Template.ObjectMeta.Labels = nil }),
			fields: []string{"spec.selector"}, says: "selector does not match labels."},
		{name: "selector and guest with faults", object: replicaSet(func(s *setSpec) { s.Selector.MatchLabels["app"] = "b" }, badName),
			fields: []string{"spec.selector", "spec.template.spec.hostname"}},
		{name: "selector by expression", object: replicaSet(requirement(metav1.LabelSelectorRequirement{Key: "tier", Operator: metav1.LabelSelectorOpExists}))},
		{name: "selector of an unknown kind", object: replicaSet(requirement(metav1.LabelSelectorRequirement{Key: "tier", Operator: "Near"})),
			fields: []string{"spec.selector"}, says: "is not a valid label selector operator"},
		{name: "selector of everything", object: replicaSet(func(s *setSpec) { s.Selector = &metav1.LabelSelector{} }), says: "spec.selector is empty"},
		{name: "pause", object: replicaSet(same), change: changed(func(s *setSpec) { s.Paused = true })},
		{name: "another selector", object: replicaSet(same), change: changed(func(s *setSpec) {
			s.Selector.MatchLabels = map[string]string{"tier": "web"}
		})},
		{name: "another selector that does not match", object: replicaSet(same), change: changed(func(s *setSpec) {
			s.Selector.MatchLabels = map[string]string{"tier": "db"}
		}), fields: []string{"spec.selector"}, says: "selector does not match labels."},
	})
}
