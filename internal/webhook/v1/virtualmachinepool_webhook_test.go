// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

type poolSpec = poolv1.VirtualMachinePoolSpec

// newPool returns a pool with the template newVM.
func newPool(name string, options ...specOption) *poolv1.VirtualMachinePool {
	labels := map[string]string{"app": name}
	pool := &poolv1.VirtualMachinePool{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	pool.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	pool.Spec.VirtualMachineTemplate = &poolv1.VirtualMachineTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: *newVM(name, options...).Spec.DeepCopy(),
	}
	pool.Spec.VirtualMachineTemplate.Spec.Template.ObjectMeta.Labels = labels
	return pool
}

func TestPool(t *testing.T) {
	limit := func(value intstr.IntOrString) func(*poolSpec) {
		return func(s *poolSpec) { s.MaxUnavailable = &value }
	}
	unmanaged := &poolv1.VirtualMachinePoolUnmanagedStrategy{}
	selecting := func(selectors poolv1.VirtualMachinePoolSelectors) *poolv1.VirtualMachinePoolSelectionPolicy {
		return &poolv1.VirtualMachinePoolSelectionPolicy{Selectors: &selectors}
	}
	near := poolv1.VirtualMachinePoolSelectors{
		LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app",
			Operator: "Near"}}},
	}
	for _, tc := range []struct {
		name    string
		option  specOption
		change  func(*poolSpec)
		fault   string
		warning string
	}{
		{name: "valid"},
		{name: "no template", change: func(s *poolSpec) { s.VirtualMachineTemplate = nil },
			fault: "spec.virtualMachineTemplate: Required value: missing virtual machine template."},
		{name: "no template of VMIs", change: func(s *poolSpec) { s.VirtualMachineTemplate.Spec.Template = nil },
			fault: "spec.virtualMachineTemplate.spec.template: Required value: missing virtual machine template."},
		{name: "an invalid guest", option: withHostname("Not A Label"), fault: "spec.virtualMachineTemplate.spec.template.spec.hostname"},
		{name: "no run strategy", change: func(s *poolSpec) { s.VirtualMachineTemplate.Spec.RunStrategy = nil },
			fault: "spec.virtualMachineTemplate.spec.runStrategy: Required value: One of Running or RunStrategy must be specified"},
		{name: "selector of other labels", change: func(s *poolSpec) { s.Selector.MatchLabels = map[string]string{"app": "other"} },
			fault: `spec.selector: Invalid value: "app=other": selector does not match labels.`},
		{name: "selector that is none", change: func(s *poolSpec) { s.Selector = near.LabelSelector },
			fault: `"Near" is not a valid label selector operator`},
		{name: "selector that misses the Pods", change: func(s *poolSpec) { s.VirtualMachineTemplate.Spec.Template.ObjectMeta.Labels = nil },
			warning: "spec.virtualMachineTemplate.spec.template.metadata.labels do not match spec.selector: an autoscaler finds no Pods"},
		{name: "an instance type", change: func(s *poolSpec) {
			s.VirtualMachineTemplate.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "u1.small"}
		}},
		{name: "an error of the instance only", warning: "spec.virtualMachineTemplate.spec.template.spec.domain.devices.disks[0].disk.bus keeps the VM from starting",
			option: withDisk(v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{ReadOnly: true}}},
				containerDisk())},

		{name: "a DataVolume in another namespace", change: func(s *poolSpec) {
			s.VirtualMachineTemplate.Spec.DataVolumeTemplates = []v1.DataVolumeTemplateSpec{
				{ObjectMeta: metav1.ObjectMeta{Name: "root", Namespace: "elsewhere"}},
			}
		}, fault: "spec.virtualMachineTemplate.spec.dataVolumeTemplates[0]: Invalid value: \"elsewhere\""},

		{name: "maxUnavailable 1", change: limit(intstr.FromInt32(1))},
		{name: "maxUnavailable 0", change: limit(intstr.FromInt32(0)), fault: "spec.maxUnavailable: Invalid value: \"0\": maxUnavailable must be greater than 0"},
		{name: "maxUnavailable 100%", change: limit(intstr.FromString("100%"))},
		{name: "maxUnavailable 101%", change: limit(intstr.FromString("101%")), fault: "maxUnavailable percentage value 101 must be between 1 and 100"},
		{name: "maxUnavailable 0%", change: limit(intstr.FromString("0%")), fault: "maxUnavailable percentage value 0 must be between 1 and 100"},
		{name: "maxUnavailable 5", change: limit(intstr.FromString("5")), fault: "maxUnavailable percentage must end with %"},
		{name: "maxUnavailable x%", change: limit(intstr.FromString("x%")), fault: `maxUnavailable percentage value "x%" is invalid: `},

		{name: "two strategies of scale-in", change: func(s *poolSpec) {
			s.ScaleInStrategy = &poolv1.VirtualMachinePoolScaleInStrategy{
				Unmanaged: unmanaged, Proactive: &poolv1.VirtualMachinePoolProactiveScaleInStrategy{},
			}
		}, fault: "spec.scaleInStrategy: Forbidden: only one strategy can be configured at a time: but found <unmanaged, proactive> strategies"},
		{name: "three strategies of updates", change: func(s *poolSpec) {
			s.UpdateStrategy = &poolv1.VirtualMachinePoolUpdateStrategy{
				Unmanaged: unmanaged, Opportunistic: &poolv1.VirtualMachineOpportunisticUpdateStrategy{},
				Proactive: &poolv1.VirtualMachinePoolProactiveUpdateStrategy{},
			}
		}, fault: "spec.updateStrategy: Forbidden: only one strategy can be configured at a time: but found <unmanaged, opportunistic, proactive> strategies"},
		{name: "one strategy of each", change: func(s *poolSpec) {
			s.ScaleInStrategy = &poolv1.VirtualMachinePoolScaleInStrategy{Unmanaged: unmanaged}
			s.UpdateStrategy = &poolv1.VirtualMachinePoolUpdateStrategy{Unmanaged: unmanaged}
		}},
		{name: "an invalid selector of scale-in", change: func(s *poolSpec) {
			s.ScaleInStrategy = &poolv1.VirtualMachinePoolScaleInStrategy{
				Proactive: &poolv1.VirtualMachinePoolProactiveScaleInStrategy{SelectionPolicy: selecting(near)},
			}
		}, fault: "spec.scaleInStrategy.proactive.selectionPolicy.selectors.labelSelector"},
		{name: "an invalid requirement of updates", change: func(s *poolSpec) {
			s.UpdateStrategy = &poolv1.VirtualMachinePoolUpdateStrategy{
				Proactive: &poolv1.VirtualMachinePoolProactiveUpdateStrategy{SelectionPolicy: selecting(
					poolv1.VirtualMachinePoolSelectors{
						NodeSelectorRequirementMatcher: &[]corev1.NodeSelectorRequirement{
							{Key: "disk", Operator: corev1.NodeSelectorOpExists}, {Key: "disk", Operator: corev1.NodeSelectorOpIn},
						},
					})},
			}
		}, fault: `spec.updateStrategy.proactive.selectionPolicy.selectors.nodeSelectorRequirementMatcher[1]: Invalid value: "disk In ()"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := clusterconfig.Default()
			config.DefaultArchitecture = clusterconfig.ArchAMD64
			var options []specOption
			if tc.option != nil {
				options = append(options, tc.option)
			}
			pool := newPool("web", options...)
			if tc.change != nil {
				tc.change(&pool.Spec)
			}
			warnings, err := (&poolValidator{config: fixedConfig{config}}).ValidateCreate(t.Context(), pool)
			if (err != nil) != (tc.fault != "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("error %v, want %q", err, tc.fault)
			}
			if got := strings.Join(warnings, "\n"); (got != "") != (tc.warning != "") || !strings.Contains(got, tc.warning) {
				t.Errorf("warnings %q, want %q", got, tc.warning)
			}
		})
	}
}

var _ = Describe("a pool", func() {
	ctx := context.Background()

	It("is rejected with the fields of its errors, in both versions", func() {
		pool := newPool("rejected", withHostname("Not A Label"))
		pool.Spec.Selector.MatchLabels = map[string]string{"app": "other"}
		expectInvalid(k8s.Create(ctx, pool), "spec.virtualMachineTemplate.spec.template.spec.hostname", "spec.selector")
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pool)
		Expect(err).NotTo(HaveOccurred())
		old := &unstructured.Unstructured{Object: content}
		old.SetAPIVersion("pool.kubevirt.io/v1alpha1")
		old.SetKind("VirtualMachinePool")
		expectInvalid(k8s.Create(ctx, old), "spec.virtualMachineTemplate.spec.template.spec.hostname", "spec.selector")
	})

	It("that breaks a later rule can be scaled and paused, but its template cannot be changed", func() {
		validator := &poolValidator{config: suiteConfig}
		valid := newPool("later")
		later := newPool("later", withHostname("Not A Label")) // admitted before there was the rule
		scaled := later.DeepCopy()
		scaled.Spec.Replicas, scaled.Spec.Paused = ptr.To(int32(4)), true
		_, err := validator.ValidateUpdate(ctx, later, scaled)
		Expect(err).NotTo(HaveOccurred())
		_, err = validator.ValidateUpdate(ctx, valid, later)
		Expect(err).To(HaveOccurred())
	})

	It("keeps its selector", func() {
		pool := newPool("kept")
		pool.Spec.VirtualMachineTemplate.ObjectMeta.Labels["tier"] = "web"
		Expect(k8s.Create(ctx, pool)).To(Succeed())
		DeferCleanup(expectGone, ctx, pool)
		patch := client.MergeFrom(pool.DeepCopy())
		pool.Spec.Selector.MatchLabels = map[string]string{"tier": "web"}
		err := k8s.Patch(ctx, pool, patch)
		expectInvalid(err, "spec.selector")
		Expect(err).To(MatchError(ContainSubstring("selector is immutable after creation.")))
	})

	It("blocks the deletion of a KubeVirt object whose strategy says so", func() {
		pool := newPool("workload")
		Expect(k8s.Create(ctx, pool)).To(Succeed())
		DeferCleanup(expectGone, ctx, pool)
		kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: "guarded-pool", Namespace: "kubevirt"}}
		kv.Spec.UninstallStrategy = v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist
		_, err := (&kubeVirtValidator{reader: k8s}).ValidateDelete(ctx, kv)
		Expect(err).To(MatchError(ContainSubstring("Virtual Machine Pools present, such as default/workload")))
	})
})
