// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package admission

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// pool returns a pool of valid VMs with the label app=a, after a change and options.
func pool(change func(*poolv1.VirtualMachinePoolSpec), options ...option) *poolv1.VirtualMachinePool {
	object := &poolv1.VirtualMachinePool{ObjectMeta: metav1.ObjectMeta{Name: "pool", Namespace: metav1.NamespaceDefault}}
	labels := metav1.ObjectMeta{Labels: map[string]string{"app": "a", "tier": "web"}}
	object.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}
	object.Spec.VirtualMachineTemplate = &poolv1.VirtualMachineTemplateSpec{
		ObjectMeta: *labels.DeepCopy(),
		Spec: v1.VirtualMachineSpec{
			RunStrategy: ptr.To(v1.RunStrategyHalted),
			Template:    &v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: labels, Spec: vmi(options...).Spec},
		},
	}
	change(&object.Spec)
	return object
}

func TestPools(t *testing.T) {
	type poolSpec = poolv1.VirtualMachinePoolSpec
	same := func(*poolSpec) {}
	limit := func(value intstr.IntOrString) func(*poolSpec) {
		return func(s *poolSpec) { s.MaxUnavailable = &value }
	}
	changed := func(change func(*poolSpec)) func(client.Object) {
		return func(o client.Object) { change(&o.(*poolv1.VirtualMachinePool).Spec) }
	}
	badName := with(func(s *spec) { s.Hostname = "web.1" })
	decide(t, []testCase{
		{name: "pool", object: pool(same)},
		{name: "guest with a fault", object: pool(same, badName), fields: []string{"spec.virtualMachineTemplate.spec.template.spec.hostname"}},
		{name: "selector of other labels", object: pool(func(s *poolSpec) { s.Selector.MatchLabels = map[string]string{"app": "b"} }),
			fields: []string{"spec.selector"}, says: "selector does not match labels."},
		{name: "template without labels", object: pool(func(s *poolSpec) { s.VirtualMachineTemplate.ObjectMeta.Labels = nil }),
			fields: []string{"spec.selector"}, says: "selector does not match labels."},
		{name: "part of the VMs", object: pool(limit(intstr.FromString("25%")))},
		{name: "part without a sign", object: pool(limit(intstr.FromString("25"))), fields: []string{"spec.maxUnavailable"},
			says: "maxUnavailable percentage must end with %"},
		{name: "part that is no number", object: pool(limit(intstr.FromString("a%"))), fields: []string{"spec.maxUnavailable"},
			says: "is invalid: "},
		{name: "too large a part", object: pool(limit(intstr.FromString("101%"))), fields: []string{"spec.maxUnavailable"},
			says: "maxUnavailable percentage value 101 must be between 1 and 100"},
		{name: "no VM at all", object: pool(limit(intstr.FromInt32(0))), fields: []string{"spec.maxUnavailable"},
			says: "maxUnavailable must be greater than 0"},
		{name: "two strategies", object: pool(func(s *poolSpec) {
			s.ScaleInStrategy = &poolv1.VirtualMachinePoolScaleInStrategy{
				Unmanaged:     &poolv1.VirtualMachinePoolUnmanagedStrategy{},
				Opportunistic: &poolv1.VirtualMachinePoolOpportunisticScaleInStrategy{},
			}
		}), fields: []string{"spec.scaleInStrategy"},
			says: "only one strategy can be configured at a time: but found <unmanaged, opportunistic> strategies"},
		{name: "pause of a pool", object: pool(same), change: changed(func(s *poolSpec) { s.Paused = true })},
		{name: "another selector of a pool", object: pool(same), change: changed(func(s *poolSpec) {
			s.Selector.MatchLabels = map[string]string{"tier": "web"}
		}), fields: []string{"spec.selector"}, says: "selector is immutable after creation."},
	})
}
