// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reference_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/revisiondata"
)

func TestKindOf(t *testing.T) {
	for name, tc := range map[string]struct {
		class *reference.Class
		kind  string
		want  string
	}{
		"default":                {reference.Instancetypes, "", "VirtualMachineClusterInstancetype"},
		"as in a manifest":       {reference.Instancetypes, "VirtualMachineInstancetype", "VirtualMachineInstancetype"},
		"lower case":             {reference.Instancetypes, "virtualmachineclusterinstancetype", "VirtualMachineClusterInstancetype"},
		"plural":                 {reference.Instancetypes, "VirtualMachineInstancetypes", "VirtualMachineInstancetype"},
		"default preference":     {reference.Preferences, "", "VirtualMachineClusterPreference"},
		"plural preference":      {reference.Preferences, "virtualmachinepreferences", "VirtualMachinePreference"},
		"of the other class":     {reference.Instancetypes, "VirtualMachinePreference", "got unexpected kind in InstancetypeMatcher: VirtualMachinePreference"},
		"unknown":                {reference.Preferences, "Pod", "got unexpected kind in PreferenceMatcher: Pod"},
		"a prefix of a resource": {reference.Preferences, "virtualmachine", "got unexpected kind in PreferenceMatcher: virtualmachine"},
	} {
		t.Run(name, func(t *testing.T) {
			kind, err := tc.class.KindOf(tc.kind)
			got := kind.Name
			if err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	policy := func(p v1.InferFromVolumeFailurePolicy) *v1.InferFromVolumeFailurePolicy { return &p }
	for name, tc := range map[string]struct {
		before, after *v1.InstancetypeMatcher
		want          []string
	}{
		"none":      {nil, nil, nil},
		"a name":    {nil, &v1.InstancetypeMatcher{Name: "a"}, nil},
		"a volume":  {nil, &v1.InstancetypeMatcher{InferFromVolume: "root", InferFromVolumeFailurePolicy: policy("Ignore")}, nil},
		"nothing":   {nil, &v1.InstancetypeMatcher{}, []string{"spec.F: Either Name or InferFromVolume should be provided within the M"}},
		"unknown":   {nil, &v1.InstancetypeMatcher{Name: "a", Kind: "Pod"}, nil},
		"a renamed": {&v1.InstancetypeMatcher{Name: "a"}, &v1.InstancetypeMatcher{Name: "b"}, nil},
		"a volume and what it replaces": {nil, &v1.InstancetypeMatcher{Name: "a", Kind: "CLUSTER", InferFromVolume: "root"},
			[]string{
				"spec.F.name: Name already set, should be cleared before setting inferFromVolume",
				"spec.F.kind: Kind already set, should be cleared before setting inferFromVolume",
			}},
		"a policy that does not exist": {
			nil, &v1.InstancetypeMatcher{InferFromVolume: "root", InferFromVolumeFailurePolicy: policy("Maybe")},
			[]string{"spec.F.inferFromVolumeFailurePolicy: Invalid value 'Maybe' for InferFromVolumeFailurePolicy"},
		},
		"another name with the revision of the old one": {
			&v1.InstancetypeMatcher{Name: "a", RevisionName: "r"}, &v1.InstancetypeMatcher{Name: "b", RevisionName: "r"},
			[]string{"spec.F.revisionName: the Matcher Name has been updated without updating the RevisionName"},
		},
		"another name with another revision": {
			&v1.InstancetypeMatcher{Name: "a", RevisionName: "r"}, &v1.InstancetypeMatcher{Name: "b", RevisionName: "s"}, nil,
		},
	} {
		for _, class := range reference.Classes {
			t.Run(name+" of "+class.Field, func(t *testing.T) {
				spec := func(m *v1.InstancetypeMatcher) *v1.VirtualMachineSpec {
					if m == nil {
						return &v1.VirtualMachineSpec{}
					}
					m = m.DeepCopy()
					if m.Kind == "CLUSTER" {
						m.Kind = class.Cluster.Name
					}
					if class == reference.Preferences {
						return &v1.VirtualMachineSpec{Preference: (*v1.PreferenceMatcher)(m)}
					}
					return &v1.VirtualMachineSpec{Instancetype: m}
				}
				var got []string
				for _, err := range reference.Validate(field.NewPath("spec"), spec(tc.before), spec(tc.after)) {
					text := strings.ReplaceAll(err.Field, "spec."+class.Field, "spec.F") + ": " +
						strings.ReplaceAll(err.Detail, class.Matcher, "M")
					got = append(got, text)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

// vmWith returns a VM that refers to an instance type, with a reference in its status.
func vmWith(matcher v1.InstancetypeMatcher, ref *v1.InstancetypeStatusRef) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "vm-uid"}}
	vm.Spec.Instancetype, vm.Status.InstancetypeRef = &matcher, ref
	return vm
}

func TestRevisionOf(t *testing.T) {
	ref := func(name, kind, volume string) *v1.InstancetypeStatusRef {
		return &v1.InstancetypeStatusRef{
			Name: name, Kind: kind, InferFromVolume: volume, ControllerRevisionRef: &v1.ControllerRevisionRef{Name: "stored"},
		}
	}
	const small = "virtualmachineclusterinstancetypes/small"
	for name, tc := range map[string]struct {
		vm      *v1.VirtualMachine
		want    string
		waiting []string
	}{
		"first sight":            {vmWith(v1.InstancetypeMatcher{Name: "small"}, nil), "", []string{small}},
		"stored":                 {vmWith(v1.InstancetypeMatcher{Name: "small"}, ref("small", "VirtualMachineClusterInstancetype", "")), "stored", nil},
		"stored without a kind":  {vmWith(v1.InstancetypeMatcher{Name: "small", Kind: "virtualmachineclusterinstancetype"}, ref("small", "", "")), "stored", nil},
		"another name":           {vmWith(v1.InstancetypeMatcher{Name: "small"}, ref("big", "", "")), "", []string{small}},
		"no revision yet":        {vmWith(v1.InstancetypeMatcher{Name: "small"}, &v1.InstancetypeStatusRef{Name: "small"}), "", []string{small}},
		"pinned":                 {vmWith(v1.InstancetypeMatcher{Name: "small", RevisionName: "pinned"}, ref("small", "", "")), "pinned", nil},
		"inferred from a volume": {vmWith(v1.InstancetypeMatcher{InferFromVolume: "root"}, nil), "", nil},
		"another kind of the same name": {
			vmWith(v1.InstancetypeMatcher{Name: "small", Kind: "VirtualMachineInstancetype"}, ref("small", "", "")), "",
			[]string{"virtualmachineinstancetypes/small"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := reference.Instancetypes.RevisionOf(tc.vm); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if diff := cmp.Diff(tc.waiting, reference.Waiting(tc.vm)); diff != "" {
				t.Error(diff)
			}
			if got := reference.Preferences.RevisionOf(tc.vm); got != "" {
				t.Errorf("the VM has no preference, got its revision %q", got)
			}
		})
	}
}

func small() *v1beta1.VirtualMachineClusterInstancetype {
	return &v1beta1.VirtualMachineClusterInstancetype{
		ObjectMeta: metav1.ObjectMeta{
			Name: "small", UID: "type-uid", Generation: 3, Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{"c": "d"},
			Finalizers:  []string{"e"}, OwnerReferences: []metav1.OwnerReference{{Name: "f"}},
			ManagedFields: []metav1.ManagedFieldsEntry{{}},
		},
		Spec: v1beta1.VirtualMachineInstancetypeSpec{
			CPU:    v1beta1.CPUInstancetype{Guest: 2, Model: ptr.To("host-model")},
			Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("2048Mi")},
		},
	}
}

func TestNewRevision(t *testing.T) {
	object := small()
	vm := vmWith(v1.InstancetypeMatcher{Name: "small"}, nil)
	revision, err := reference.NewRevision(vm, object)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(small(), object); diff != "" {
		t.Errorf("the object was changed: %s", diff)
	}
	if want := "vm-small-v1beta1-type-uid-3"; revision.Name != want || revision.Namespace != "ns" {
		t.Errorf("got %s/%s, want ns/%s", revision.Namespace, revision.Name, want)
	}
	if !metav1.IsControlledBy(revision, vm) {
		t.Error("the VM does not own it")
	}
	wantLabels := map[string]string{
		"instancetype.kubevirt.io/object-generation": "3", "instancetype.kubevirt.io/object-kind": "VirtualMachineClusterInstancetype",
		"instancetype.kubevirt.io/object-name": "small", "instancetype.kubevirt.io/object-uid": "type-uid",
		"instancetype.kubevirt.io/object-version": "v1beta1", "kubevirt.io/created-by": "vm-uid",
	}
	if diff := cmp.Diff(wantLabels, revision.Labels); diff != "" {
		t.Error(diff)
	}
	if !reference.IsRevision(revision.Labels) || !reference.IsLatest(revision.Labels) {
		t.Error("it is not recognized by its labels")
	}
	if sorted, err := revisiondata.SortKeys(revision.Data.Raw); err != nil || !bytes.Equal(sorted, revision.Data.Raw) {
		t.Errorf("the keys are not sorted (%v): %s", err, revision.Data.Raw)
	}
	var data map[string]any
	if err := json.Unmarshal(revision.Data.Raw, &data); err != nil {
		t.Fatal(err)
	}
	if data["apiVersion"] != "instancetype.kubevirt.io/v1beta1" || data["kind"] != "VirtualMachineClusterInstancetype" {
		t.Errorf("the data have no kind: %s", revision.Data.Raw)
	}
	metadata, _ := data["metadata"].(map[string]any)
	for _, field := range []string{"labels", "annotations", "finalizers", "ownerReferences", "managedFields"} {
		if _, has := metadata[field]; has {
			t.Errorf("the data have metadata.%s", field)
		}
	}
}

// A name may be longer than a label, which would make every start of the VM fail.
func TestNewRevisionOfALongName(t *testing.T) {
	object := small()
	object.Name = strings.Repeat("long-", 20) + "name"
	revision, err := reference.NewRevision(vmWith(v1.InstancetypeMatcher{Name: object.Name}, nil), object)
	if err != nil {
		t.Fatal(err)
	}
	for label, value := range revision.Labels {
		if invalid := validation.IsValidLabelValue(value); value == "" || invalid != nil {
			t.Errorf("%s is %q: %v", label, value, invalid)
		}
	}
	if !strings.Contains(revision.Name, object.Name) || !reference.IsRevision(revision.Labels) {
		t.Errorf("%s has the labels %v", revision.Name, revision.Labels)
	}
}

// A user may write the data of a revision. If its quantity were decoded, this test would not end.
func TestARevisionWithAHugeQuantityIsNotDecoded(t *testing.T) {
	revision := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(
		`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype","spec":{"memory":{"guest":"1e-1000000000"}}}`,
	)}}
	if object, err := reference.Instancetypes.Decode(revision); !errors.Is(err, reference.ErrUnusable) ||
		!strings.Contains(err.Error(), "spec.memory.guest: ") {
		t.Errorf("got %v, %v", object, err)
	}
}

func TestDecode(t *testing.T) {
	vm, object := vmWith(v1.InstancetypeMatcher{Name: "small"}, nil), small()
	revision, err := reference.NewRevision(vm, object)
	if err != nil {
		t.Fatal(err)
	}
	back, err := reference.Instancetypes.Decode(revision)
	if err != nil {
		t.Fatal(err)
	}
	if !reference.SameSpec(back, object) || back.GetName() != "small" || back.GetUID() != "type-uid" ||
		back.GetGeneration() != 3 {
		t.Errorf("got another object back: %v", back)
	}
	edited := small()
	edited.Spec.CPU.Guest = 4
	if reference.SameSpec(back, edited) || reference.SameSpec(back, &v1beta1.VirtualMachineClusterPreference{}) {
		t.Error("different specs are the same")
	}
	if _, err := reference.NewRevision(vm, &v1.VirtualMachine{}); err == nil {
		t.Error("a VM was stored as an instance type")
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ data, want string }{
		"an alpha version": {`{"apiVersion":"instancetype.kubevirt.io/v1alpha2","kind":"VirtualMachineInstancetype","spec":{}}`, `apiVersion "instancetype.kubevirt.io/v1alpha2" is not supported`},
		"no version":       {`{"apiVersion":"","spec":"e30="}`, `apiVersion "" is not supported`},
		"a preference":     {`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachinePreference","spec":{}}`, "it has a VirtualMachinePreference, spec.instancetype needs"},
		"no object":        {`[]`, "cannot unmarshal"},
		"another type":     {`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype","spec":{"cpu":1}}`, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"},
				Data: runtime.RawExtension{Raw: []byte(tc.data)}}
			object, err := reference.Instancetypes.Decode(revision)
			if err == nil || !strings.HasPrefix(err.Error(), "failed to decode object in ControllerRevision: ns/r: ") ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v and error %v, want one with %q", object, err, tc.want)
			}
		})
	}
}

// objects is a reader of the given objects, by key.
type objects map[client.ObjectKey]client.Object

func (o objects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *v1beta1.VirtualMachineClusterInstancetype:
		if found, ok := o[key].(*v1beta1.VirtualMachineClusterInstancetype); ok {
			found.DeepCopyInto(into)
			return nil
		}
	case *v1beta1.VirtualMachinePreference:
		if found, ok := o[key].(*v1beta1.VirtualMachinePreference); ok {
			found.DeepCopyInto(into)
			return nil
		}
	case *appsv1.ControllerRevision:
		if found, ok := o[key].(*appsv1.ControllerRevision); ok {
			found.DeepCopyInto(into)
			return nil
		}
	}
	return apierrors.NewNotFound(v1beta1.GroupVersion.WithResource("Kind").GroupResource(), key.Name)
}

func (objects) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

func TestFind(t *testing.T) {
	vm := vmWith(v1.InstancetypeMatcher{Name: "small"}, nil)
	vm.Spec.Preference = &v1.PreferenceMatcher{Name: "linux", Kind: "virtualmachinepreference"}
	preference := &v1beta1.VirtualMachinePreference{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "linux"}}
	preference.Spec.PreferredSubdomain = ptr.To("sub")
	stored := small()
	stored.Spec.CPU.Guest = 8
	revision, err := reference.NewRevision(vm, stored)
	if err != nil {
		t.Fatal(err)
	}
	finder := reference.Finder{
		Objects:   objects{{Name: "small"}: small(), {Namespace: "ns", Name: "linux"}: preference},
		Revisions: objects{{Namespace: "ns", Name: revision.Name}: revision},
	}
	specs, err := finder.Find(t.Context(), vm)
	if err != nil || specs.Instancetype.CPU.Guest != 2 || *specs.Preference.PreferredSubdomain != "sub" {
		t.Errorf("objects: got %+v, %v", specs, err)
	}
	vm.Status.InstancetypeRef = &v1.InstancetypeStatusRef{Name: "small",
		ControllerRevisionRef: &v1.ControllerRevisionRef{Name: revision.Name}}
	specs, err = finder.Find(t.Context(), vm)
	if err != nil || specs.Instancetype.CPU.Guest != 8 {
		t.Errorf("revision in the status: got %+v, %v", specs, err)
	}
	vm.Spec.Instancetype.RevisionName = "gone"
	if _, err := finder.Find(t.Context(), vm); !apierrors.IsNotFound(err) ||
		!strings.Contains(err.Error(), "get ControllerRevision ns/gone") {
		t.Errorf("missing revision: got %v", err)
	}
	vm = vmWith(v1.InstancetypeMatcher{Name: "big"}, nil)
	const want = `virtualmachineclusterinstancetypes.instancetype.kubevirt.io "big" not found`
	if _, err := finder.Find(t.Context(), vm); !apierrors.IsNotFound(err) || err.Error() != want {
		t.Errorf("missing object: got %v, want %s", err, want)
	}
	if specs, err := finder.Find(t.Context(), &v1.VirtualMachine{}); err != nil || specs.Instancetype != nil ||
		specs.Preference != nil {
		t.Errorf("no matcher: got %+v, %v", specs, err)
	}
}

func TestInference(t *testing.T) {
	ignore := v1.IgnoreInferFromVolumeFailure
	volumes := []v1.Volume{
		{Name: "claim", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}},
		{Name: "image", VolumeSource: v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}},
	}
	for name, tc := range map[string]struct {
		volume string
		policy *v1.InferFromVolumeFailurePolicy
		ref    *v1.InstancetypeStatusRef
		want   string
	}{
		"a claim":               {volume: "claim"},
		"no volume":             {volume: "missing", want: "unable to find volume missing to infer defaults"},
		"no volume, ignored":    {volume: "missing", policy: &ignore, want: "unable to find volume missing to infer defaults"},
		"another type":          {volume: "image", want: "unable to infer defaults from volume image as type is not supported"},
		"another type, ignored": {volume: "image", policy: &ignore},
		"a volume that was removed after the inference": {
			volume: "removed", ref: &v1.InstancetypeStatusRef{Name: "small", InferFromVolume: "removed",
				ControllerRevisionRef: &v1.ControllerRevisionRef{Name: "r"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			vm := vmWith(v1.InstancetypeMatcher{InferFromVolume: tc.volume, InferFromVolumeFailurePolicy: tc.policy}, tc.ref)
			vm.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{Spec: v1.VirtualMachineInstanceSpec{Volumes: volumes}}
			got := ""
			if err := reference.Hopeless(vm); err != nil {
				got = err.Error()
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			vm.Spec.Template.Spec.Domain.Memory = &v1.Memory{}
			for specs, kept := range map[*v1beta1.VirtualMachineInstancetypeSpec]bool{nil: true, {}: tc.policy == nil} {
				template := reference.TemplateOf(&vm.Spec, reference.Specs{Instancetype: specs})
				if (template.Spec.Domain.Memory != nil) != kept || vm.Spec.Template.Spec.Domain.Memory == nil {
					t.Errorf("memory with instance type %v: kept %t", specs, !kept)
				}
			}
		})
	}
}
