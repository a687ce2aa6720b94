// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// newReplicaSet returns a set with the template newSpec.
func newReplicaSet(name string, options ...specOption) *v1.VirtualMachineInstanceReplicaSet {
	labels := map[string]string{"app": name}
	set := &v1.VirtualMachineInstanceReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name,
		Namespace: metav1.NamespaceDefault}}
	set.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	set.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: *newSpec(options...),
	}
	return set
}

func withHostname(hostname string) specOption {
	return func(spec *v1.VirtualMachineInstanceSpec) { spec.Hostname = hostname }
}

func TestReplicaSet(t *testing.T) {
	readOnly := withDisk(v1.Disk{Name: "data", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{ReadOnly: true}}},
		containerDisk())
	for _, tc := range []struct {
		name    string
		option  specOption
		change  func(*v1.VirtualMachineInstanceReplicaSetSpec)
		fault   string
		warning string
	}{
		{name: "sound"},
		{name: "no template", change: func(s *v1.VirtualMachineInstanceReplicaSetSpec) { s.Template = nil },
			fault: "spec.template: Required value: missing virtual machine template."},
		{name: "a faulty guest", option: withHostname("Not A Label"), fault: "spec.template.spec.hostname"},
		{name: "selector of other labels", change: func(s *v1.VirtualMachineInstanceReplicaSetSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "other"}}
		}, fault: `spec.selector: Invalid value: "app=other": selector does not match labels.`},
		{name: "selector that is none", change: func(s *v1.VirtualMachineInstanceReplicaSetSpec) {
			s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app",
				Operator: "Near"}}}
		}, fault: `"Near" is not a valid label selector operator`},
		{name: "no selector", change: func(s *v1.VirtualMachineInstanceReplicaSetSpec) { s.Selector = nil },
			fault: "selector does not match labels."},
		{name: "selector of everything", change: func(s *v1.VirtualMachineInstanceReplicaSetSpec) { s.Selector = &metav1.LabelSelector{} },
			warning: "spec.selector is empty"},
		{name: "no labels", change: func(s *v1.VirtualMachineInstanceReplicaSetSpec) {
			s.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x",
				Operator: "DoesNotExist"}}}
			s.Template.ObjectMeta.Labels = nil
		}, warning: "spec.template.metadata.labels is empty"},
		{name: "a fault of the instance only", option: readOnly,
			warning: "spec.template.spec.domain.devices.disks[0].disk.bus keeps the VM from starting"},
		{name: "an annotation behind a gate", change: func(s *v1.VirtualMachineInstanceReplicaSetSpec) {
			s.Template.ObjectMeta.Annotations = map[string]string{v1.IgnitionAnnotation: "{}"}
		}, warning: "spec.template.metadata.annotations[" + v1.IgnitionAnnotation + "]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := clusterconfig.Default()
			config.DefaultArchitecture = clusterconfig.ArchAMD64
			var options []specOption
			if tc.option != nil {
				options = append(options, tc.option)
			}
			set := newReplicaSet("web", options...)
			if tc.change != nil {
				tc.change(&set.Spec)
			}
			warnings, err := (&replicaSetValidator{config: fixedConfig{config}}).ValidateCreate(t.Context(), set)
			if (err != nil) != (tc.fault != "") || err != nil && !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("error %v, want %q", err, tc.fault)
			}
			if got := strings.Join(warnings, "\n"); (got != "") != (tc.warning != "") || !strings.Contains(got, tc.warning) {
				t.Errorf("warnings %q, want %q", got, tc.warning)
			}
		})
	}
}

var _ = Describe("a replica set", func() {
	ctx := context.Background()

	It("is refused with the fields of its errors", func() {
		set := newReplicaSet("judged", withHostname("Not A Label"))
		set.Spec.Selector.MatchLabels = map[string]string{"app": "other"}
		expectInvalid(k8s.Create(ctx, set), "spec.template.spec.hostname", "spec.selector")
	})

	It("that breaks a later rule can be scaled and paused, but its template cannot be changed", func() {
		set := newReplicaSet("scaled")
		Expect(k8s.Create(ctx, set)).To(Succeed())
		DeferCleanup(expectGone, ctx, set)

		validator := &replicaSetValidator{config: suiteConfig}
		later := set.DeepCopy()
		later.Spec.Template.Spec.Hostname = "Not A Label" // taken before there was the rule
		scaled := later.DeepCopy()
		scaled.Spec.Replicas, scaled.Spec.Paused = ptr.To(int32(4)), true
		_, err := validator.ValidateUpdate(ctx, later, scaled)
		Expect(err).NotTo(HaveOccurred())
		_, err = validator.ValidateUpdate(ctx, set, later)
		Expect(err).To(HaveOccurred())

		patch := client.MergeFrom(set.DeepCopy())
		set.Spec.Selector.MatchLabels["app"] = "other"
		expectInvalid(k8s.Patch(ctx, set, patch), "spec.selector")
	})

	It("blocks the deletion of a KubeVirt object whose strategy says so", func() {
		set := newReplicaSet("workload")
		Expect(k8s.Create(ctx, set)).To(Succeed())
		DeferCleanup(expectGone, ctx, set)
		kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Name: "guarded-set", Namespace: "kubevirt"}}
		kv.Spec.UninstallStrategy = v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist
		_, err := (&kubeVirtValidator{reader: k8s}).ValidateDelete(ctx, kv)
		Expect(err).To(MatchError(
			ContainSubstring("Virtual Machine Instance Replica Sets present, such as default/workload")))
	})
})
