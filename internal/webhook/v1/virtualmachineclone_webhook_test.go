// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"errors"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

func newClone(name string, changes ...func(*clonev1beta1.VirtualMachineCloneSpec)) *clonev1beta1.VirtualMachineClone {
	vmClone := &clonev1beta1.VirtualMachineClone{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault,
		Name: name}}
	vmClone.Spec.Source = &corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
		Name: "vm"}
	vmClone.Spec.Target = &corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
		Name: "copy"}
	for _, change := range changes {
		change(&vmClone.Spec)
	}
	return vmClone
}

// cause is an error about one field as clients read it.
type cause struct {
	kind  metav1.CauseType
	field string
	// text is a part of the message: KubeVirt's.
	text string
}

func invalid(path, text string) cause { return cause{metav1.CauseTypeFieldValueInvalid, path, text} }

// expectCauses expects exactly these errors, in this order.
func expectCauses(t *testing.T, err error, want []cause) {
	t.Helper()
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
		t.Fatalf("got %v, want an invalid object", err)
	}
	causes := status.Status().Details.Causes
	if len(causes) != len(want) {
		t.Fatalf("got %+v, want %+v", causes, want)
	}
	for i, got := range causes {
		if got.Type != want[i].kind || got.Field != want[i].field || !strings.Contains(got.Message, want[i].text) {
			t.Errorf("got %+v, want %+v", got, want[i])
		}
	}
}

func TestClones(t *testing.T) {
	type spec = clonev1beta1.VirtualMachineCloneSpec
	labels := func(filters ...string) func(*spec) { return func(s *spec) { s.LabelFilters = filters } }
	fromSnapshot := func(s *spec) {
		s.Source = &corev1.TypedLocalObjectReference{APIGroup: ptr.To("snapshot.kubevirt.io"), Kind: "VirtualMachineSnapshot",
			Name: "snap"}
	}
	for name, tc := range map[string]struct {
		change func(*spec)
		want   []cause
	}{
		"of a VM":          {},
		"of a snapshot":    {change: fromSnapshot},
		"without a target": {change: func(s *spec) { s.Target = nil }},
		"without a source": {change: func(s *spec) { s.Source = nil }, want: []cause{invalid("spec.Source", "Source cannot be nil")}},
		"of another kind":  {change: func(s *spec) { s.Source.Kind = "Pod" }, want: []cause{invalid("spec.Source.Kind", "Source kind is not supported")}},
		"without a kind": {
			change: func(s *spec) { s.Source.Kind = "" },
			want: []cause{invalid("spec.Source.Kind", "Source kind is not supported"),
				invalid("spec.Source", "Source's Kind cannot be empty")},
		},
		"without a group":   {change: func(s *spec) { s.Source.APIGroup = nil }, want: []cause{invalid("spec.Source.APIGroup", "Source's APIGroup cannot be empty")}},
		"of an empty group": {change: func(s *spec) { s.Source.APIGroup = ptr.To("") }, want: []cause{invalid("spec.Source.APIGroup", "Source's APIGroup cannot be empty")}},
		"without a name":    {change: func(s *spec) { s.Source.Name = "" }, want: []cause{invalid("spec.Source.Name", "Source's name cannot be empty")}},
		"to another kind":   {change: func(s *spec) { s.Target.Kind = "Pod" }, want: []cause{invalid("spec.Target.Kind", "Target kind is not supported")}},
		"to itself": {
			change: func(s *spec) { s.Target.Name = "vm" },
			want: []cause{invalid("spec.target.name",
				"Target name cannot be equal to source name when both are VirtualMachines")},
		},
		"to a snapshot's name": {change: func(s *spec) { fromSnapshot(s); s.Target.Name = "snap" }},
		"MAC addresses": {change: func(s *spec) {
			s.NewMacAddresses = map[string]string{"a": "02:00:00:00:00:01", "b": "02-00-00-00-00-02", "c": ""}
		}},
		"a malformed MAC address": {
			change: func(s *spec) { s.NewMacAddresses = map[string]string{"default": "02:00"} },
			want:   []cause{invalid("spec.newMacAddresses.default", "interface default has malformed MAC address (02:00).")},
		},
		"a MAC address that is too long": {
			change: func(s *spec) { s.NewMacAddresses = map[string]string{"default": "02:00:00:00:00:00:00:01"} },
			want: []cause{invalid("spec.newMacAddresses.default",
				"interface default has malformed MAC address (02:00:00:00:00:00:00:01).")},
		},
		"a patch that is not JSON": {
			change: func(s *spec) { s.Patches = []string{`{"op":"remove","path":"/spec/x"}`, `{"op"`} },
			want:   []cause{invalid("spec.patches[1]", `patch is not valid JSON ({"op")`)},
		},
		"a patch that is not JSON after one that a restore refuses": {
			change: func(s *spec) { s.Patches = []string{`{"op":"remove","path":"/metadata/name"}`, `{"op"`} },
			want:   []cause{invalid("spec.patches[1]", `patch is not valid JSON ({"op")`)},
		},
		"a prefix": {change: func(s *spec) { s.VolumeNamePolicy = ptr.To(clonev1beta1.VolumeNamePolicyPrefixTargetName) }},
		"an unknown policy": {
			change: func(s *spec) { s.VolumeNamePolicy = ptr.To(clonev1beta1.VolumeNamePolicy("x")) },
			want:   []cause{{metav1.CauseTypeFieldValueNotSupported, "spec.volumeNamePolicy", `VolumeNamePolicy "x" is not supported`}},
		},
		"filters":           {change: labels("*", "!some/key*", "other")},
		"an empty filter":   {change: labels("a", ""), want: []cause{invalid("spec.labelFilters[1]", "an empty filter is not a valid filter")}},
		"a lone !":          {change: labels("!"), want: []cause{invalid("spec.labels", "a negation character is not a valid filter")}},
		"a ! in the middle": {change: labels("a!b"), want: []cause{invalid("spec.labels", "spec.labels filter a!b is invalid: cannot contain a negation character (!); FilterRules: NegationChar can be only used at the beginning of the filter")}},
		"a * in the middle": {change: labels("a*b"), want: []cause{invalid("spec.labels", "spec.labels filter a*b is invalid: cannot contain a wildcard character (*); FilterRules: WildcardChar can be only at the end of the filter")}},
		"a long filter":     {change: labels(strings.Repeat("a", 513)), want: []cause{{metav1.CauseTypeTooLong, "spec.labelFilters[0]", "512"}}},
		"many filters":      {change: labels(slices.Repeat([]string{"a"}, 257)...), want: []cause{{metav1.CauseTypeTooMany, "spec.labelFilters", "256"}}},
		"filters of the template": {
			change: func(s *spec) { s.Template.AnnotationFilters, s.Template.LabelFilters = []string{"!"}, []string{"!"} },
			want: []cause{
				invalid("spec.template.annotations", "a negation character is not a valid filter"),
				invalid("spec.template.labels", "a negation character is not a valid filter"),
			},
		},
		"filters of annotations": {change: func(s *spec) { s.AnnotationFilters = []string{"!"} }, want: []cause{invalid("spec.annotations", "a negation character is not a valid filter")}},
	} {
		t.Run(name, func(t *testing.T) {
			vmClone, v := newClone("c"), &cloneValidator{config: fixedConfig{clusterconfig.Default()}}
			before := vmClone.DeepCopy()
			if tc.change != nil {
				tc.change(&vmClone.Spec)
			}
			warnings, err := v.ValidateCreate(t.Context(), vmClone)
			_, onUpdate := v.ValidateUpdate(t.Context(), before, vmClone)
			if len(tc.want) == 0 {
				if err != nil || onUpdate != nil || len(warnings) > 0 {
					t.Fatalf("got %v, %v, %v", warnings, err, onUpdate)
				}
				return
			}
			expectCauses(t, err, tc.want)
			expectCauses(t, onUpdate, tc.want)
		})
	}
}

func TestClonesNeedTheirGate(t *testing.T) {
	config := clusterconfig.Default()
	config.FeatureGates = clusterconfig.NewFeatureGates(nil, []string{"Snapshot"})
	v := &cloneValidator{config: fixedConfig{config}}
	_, err := v.ValidateCreate(t.Context(), newClone("c"))
	expectRefused(t, err, "snapshot feature gate is not enabled")
	changed := newClone("c", func(s *clonev1beta1.VirtualMachineCloneSpec) { s.Target.Name = "other" })
	if _, err := v.ValidateUpdate(t.Context(), newClone("c"), changed); err != nil {
		t.Errorf("an update: %v", err)
	}
}

func TestClonesWarnOfPatches(t *testing.T) {
	vmClone := newClone("c", func(s *clonev1beta1.VirtualMachineCloneSpec) {
		s.Patches = []string{`{"op":"remove","path":"/metadata/name"}`, `{"op":"remove","path":"/metadata/uid"}`}
	})
	warnings, err := (&cloneValidator{config: fixedConfig{clusterconfig.Default()}}).ValidateCreate(t.Context(), vmClone)
	if err != nil || len(warnings) != 1 ||
		!strings.Contains(warnings[0], "spec.patches[0]: the VM cannot be cloned: patching is valid only") {
		t.Errorf("got %q, %v", warnings, err)
	}
}

func TestClonesThatDoNotChangeStayValid(t *testing.T) {
	before := newClone("c", func(s *clonev1beta1.VirtualMachineCloneSpec) { s.Source.Kind = "Pod" })
	after := before.DeepCopy()
	after.Labels = map[string]string{"a": "b"}
	if _, err := (&cloneValidator{config: fixedConfig{clusterconfig.Default()}}).ValidateUpdate(t.Context(), before,
		after); err != nil {
		t.Error(err)
	}
}

var _ = Describe("clones", func() {
	It("get a target, and are validated when they are created and changed", func(ctx SpecContext) {
		vmClone := newClone("c", func(s *clonev1beta1.VirtualMachineCloneSpec) { s.Patches = []string{"{"} })
		Expect(k8s.Create(ctx, vmClone)).To(MatchError(ContainSubstring("patch is not valid JSON")))
		vmClone = newClone("c", func(s *clonev1beta1.VirtualMachineCloneSpec) { s.Target = nil })
		Expect(k8s.Create(ctx, vmClone)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, vmClone)).To(Succeed()) })
		Expect(vmClone.Spec.Target.Name).To(MatchRegexp("^clone-vm-[a-z0-9]{5}$"))
		Expect(vmClone.Spec.Target.Kind).To(Equal("VirtualMachine"))
		Expect(vmClone.Spec.Target.APIGroup).To(HaveValue(Equal("kubevirt.io")))
		vmClone.Spec.Target.Name = "vm"
		Expect(k8s.Update(ctx, vmClone)).To(MatchError(ContainSubstring("Target name cannot be equal to source name")))
	})

	It("get a name for their target in each version, and nothing else", func(ctx SpecContext) {
		vmClone := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "clone.kubevirt.io/v1alpha1", "kind": "VirtualMachineClone",
			"metadata": map[string]any{"namespace": metav1.NamespaceDefault, "name": "old"},
			"spec": map[string]any{
				"source": map[string]any{"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm"},
				"target": map[string]any{"apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": ""},
			},
		}}
		Expect(k8s.Create(ctx, vmClone)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(k8s.Delete(ctx, vmClone)).To(Succeed()) })
		target, _, err := unstructured.NestedString(vmClone.Object, "spec", "target", "name")
		Expect(err).NotTo(HaveOccurred())
		Expect(target).To(HavePrefix("clone-vm-"))
		Expect(vmClone.Object["spec"]).To(HaveLen(2))
	})

	It("are refused without a source", func(ctx SpecContext) {
		vmClone := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "clone.kubevirt.io/v1beta1", "kind": "VirtualMachineClone",
			"metadata": map[string]any{"namespace": metav1.NamespaceDefault, "name": "none"}, "spec": map[string]any{},
		}}
		Expect(k8s.Create(ctx, vmClone)).To(MatchError(ContainSubstring("spec.source")))
	})
})
