// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
)

// mutated returns the metadata of a VM after admission. before is the stored VM, or nil for a new one.
func mutated(t *testing.T, before, vm *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	t.Helper()
	request := admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: admissionv1.Create,
		Namespace: "ns"}}
	raw := func(object any) []byte {
		content, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	request.Object.Raw = raw(vm)
	if before != nil {
		request.Operation, request.OldObject.Raw = admissionv1.Update, raw(before)
	}
	response := (&vmMutator{decoder: admission.NewDecoder(runtime.NewScheme())}).Handle(t.Context(), request)
	if !response.Allowed {
		t.Fatalf("refused: %+v", response.Result)
	}
	patch, err := jsonpatch.DecodePatch(raw(response.Patches))
	if err != nil {
		t.Fatal(err)
	}
	if len(patch) == 0 {
		return vm
	}
	patched, err := patch.Apply(request.Object.Raw)
	if err != nil {
		t.Fatal(err)
	}
	out := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(patched, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestIdentityAtAdmission(t *testing.T) {
	vm := func(name string, annotations map[string]string) *metav1.PartialObjectMetadata {
		out := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			Annotations: annotations}}
		out.APIVersion, out.Kind = v1.GroupVersion.String(), v1.VirtualMachineGroupVersionKind.Kind
		return out
	}
	own, other := firmware.NewRecord("ns", "vm").Text(), firmware.NewRecord("ns", "other").Text()
	annotated := func(text string) map[string]string {
		return map[string]string{firmware.RecordAnnotation: text, "note": "x"}
	}
	for name, c := range map[string]struct {
		before *metav1.PartialObjectMetadata
		vm     *metav1.PartialObjectMetadata
		// want is the record; empty means a new one.
		want string
		none bool
	}{
		"a new VM":                             {vm: vm("vm", nil)},
		"a new VM with annotations":            {vm: vm("vm", map[string]string{"note": "x"})},
		"a VM from a backup":                   {vm: vm("vm", annotated(own)), want: own},
		"a copy of another VM":                 {vm: vm("vm", annotated(other))},
		"a generated name":                     {vm: vm("", nil), none: true},
		"replaced by a manifest without it":    {before: vm("vm", annotated(own)), vm: vm("vm", nil), want: own},
		"replaced by a manifest with another":  {before: vm("vm", annotated(own)), vm: vm("vm", annotated(other)), want: own},
		"changed":                              {before: vm("vm", annotated(own)), vm: vm("vm", annotated(own)), want: own},
		"a VM from before there were records":  {before: vm("vm", nil), vm: vm("vm", nil), none: true},
		"recorded by virt-controller":          {before: vm("vm", nil), vm: vm("vm", annotated(own)), want: own},
		"a user sets another identity on a VM": {before: vm("vm", annotated(firmware.NewRecord("ns", "vm").Text())), vm: vm("vm", annotated(own)), want: own},
	} {
		t.Run(name, func(t *testing.T) {
			got := mutated(t, c.before, c.vm)
			text := got.Annotations[firmware.RecordAnnotation]
			_, valid := firmware.RecordOf("ns", "vm", got.Annotations)
			switch {
			case c.none && text != "", !c.none && !valid, c.want != "" && text != c.want:
				t.Errorf("the record is %q", text)
			}
			if c.vm.Annotations["note"] != got.Annotations["note"] {
				t.Errorf("the annotations are %v", got.Annotations)
			}
			if added := len(got.Finalizers) > 0; added == (c.before != nil) {
				t.Errorf("the finalizers are %v", got.Finalizers)
			}
			if again := mutated(t, c.before, got); again.Annotations[firmware.RecordAnnotation] != text {
				t.Errorf("a second admission changes the record to %q", again.Annotations[firmware.RecordAnnotation])
			}
		})
	}
}
