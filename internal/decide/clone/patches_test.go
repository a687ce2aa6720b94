// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clone

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/restore"
)

func TestPatches(t *testing.T) {
	type spec = v1beta1.VirtualMachineCloneSpec
	type vm = snapshotv1beta1.VirtualMachine
	const noAddress = `{"op":"add","path":"/spec/template/spec/domain/devices/interfaces/0/macAddress","value":""}`
	for name, tc := range map[string]struct {
		vm     func(*vm)
		change func(*spec)
		target string
		want   []string
	}{
		"a MAC address that is removed": {want: []string{noAddress}},
		"no MAC address":                {vm: func(vm *vm) { vm.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress = "" }},
		"a new MAC address, and one of an interface that does not exist": {
			change: func(s *spec) { s.NewMacAddresses = map[string]string{"default": "02-00-00-00-00-02", "other": mac} },
			want:   []string{strings.Replace(noAddress, `""`, `"02-00-00-00-00-02"`, 1)},
		},
		"the firmware": {
			vm: func(vm *vm) {
				vm.Spec.Template.Spec.Domain.Firmware = &v1.Firmware{UUID: "u", Serial: "s",
					Bootloader: &v1.Bootloader{BIOS: &v1.BIOS{}}}
			},
			want: []string{noAddress, `{"op":"add","path":"/spec/template/spec/domain/firmware","value":{"bootloader":{"bios":{}}}}`},
		},
		"a serial number of a VM without firmware": {
			change: func(s *spec) { s.NewSMBiosSerial = ptr.To("new") },
			want:   []string{noAddress, `{"op":"add","path":"/spec/template/spec/domain/firmware","value":{"serial":"new"}}`},
		},
		"the name of the source": {target: "vm", want: []string{noAddress, `{"op":"remove","path":"/metadata/annotations/kubevirt.io~1guest-identity"}`}},
		"patches of the user": {
			change: func(s *spec) { s.Patches = []string{`{"op":"remove","path":"/spec/x"}`} }, want: []string{noAddress, `{"op":"remove","path":"/spec/x"}`},
		},
		"no labels and no annotations": {
			vm: func(vm *vm) {
				vm.Labels["a/b~c"] = ""
				vm.Annotations[firmware.IdentityAnnotation], vm.Annotations[snapshot.LastRestoreAnnotation] = "x", "old-1"
				vm.Annotations[firmware.RecordAnnotation] = "x"
				vm.Spec.Template.ObjectMeta.Labels, vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"l": ""},
					map[string]string{"a": ""}
			},
			change: func(s *spec) {
				s.LabelFilters, s.AnnotationFilters = []string{}, []string{}
				s.Template.LabelFilters, s.Template.AnnotationFilters = []string{}, []string{}
			},
			want: []string{
				noAddress, `{"op":"remove","path":"/metadata/labels/a~1b~0c"}`, `{"op":"remove","path":"/metadata/labels/app"}`,
				`{"op":"remove","path":"/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration"}`,
				`{"op":"remove","path":"/metadata/annotations/kubevirt.io~1firmware-identity"}`, `{"op":"remove","path":"/metadata/annotations/note"}`,
				`{"op":"remove","path":"/spec/template/metadata/labels/l"}`, `{"op":"remove","path":"/spec/template/metadata/annotations/a"}`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			source := &vm{ObjectMeta: c.Source.ObjectMeta, Spec: *c.Source.Spec.DeepCopy()}
			if tc.vm != nil {
				tc.vm(source)
			}
			if tc.change != nil {
				tc.change(&c.Clone.Spec)
			}
			target := "copy"
			if tc.target != "" {
				target = tc.target
			}
			got, err := patches(c.Clone, source, target)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(append([]string{}, tc.want...), append([]string{}, got...)); diff != "" {
				t.Error(diff)
			}
			for _, patch := range got {
				if err := restore.CheckPatch(patch); err != nil {
					t.Errorf("a restore refuses it: %v", err)
				}
			}
		})
	}
}

// TestFilters has KubeVirt's behavior.
func TestFilters(t *testing.T) {
	keys := map[string]string{"app": "", "example.com/a": "", "example.com/b": "", "my-app": ""}
	for name, tc := range map[string]struct {
		filters []string
		kept    []string
	}{
		"none at all":              {nil, slices.Sorted(maps.Keys(keys))},
		"an empty list":            {[]string{}, nil},
		"all":                      {[]string{"*"}, slices.Sorted(maps.Keys(keys))},
		"anywhere in a key":        {[]string{"app"}, []string{"app", "my-app"}},
		"the beginning of a key":   {[]string{"^app$"}, []string{"app"}},
		"a group":                  {[]string{"example.com/*"}, []string{"example.com/a", "example.com/b"}},
		"all but a group":          {[]string{"*", "!example.com/*"}, []string{"app", "my-app"}},
		"an exclusion wins":        {[]string{"!app", "app", "example.com/a"}, []string{"example.com/a"}},
		"exclusions only":          {[]string{"!app"}, nil},
		"all excluded":             {[]string{"app", "!*"}, nil},
		"not a regular expression": {[]string{"(", "!(", "app"}, []string{"app", "my-app"}},
		"nothing":                  {[]string{"", "!"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			removed, err := removals("", keys, tc.filters)
			if err != nil {
				t.Fatal(err)
			}
			left := maps.Clone(keys)
			for _, o := range removed {
				delete(left, strings.ReplaceAll(o.Path, "~1", "/"))
			}
			if diff := cmp.Diff(append([]string{}, tc.kept...),
				append([]string{}, slices.Sorted(maps.Keys(left))...)); diff != "" {
				t.Error(diff)
			}
		})
	}
	nested := strings.Repeat("(", 249) + "x" + strings.Repeat(")", 249) + "{1000}"
	for _, filters := range [][]string{
		slices.Repeat([]string{"a"}, MaxFilters+1), {strings.Repeat("a", MaxFilter+1)},
		{nested}, {"!" + nested}, slices.Repeat([]string{strings.Repeat(".", 100)}, 100), {strings.Repeat(".{0,1000}", 50)}, {"(abcdefgh){999}"},
	} {
		if _, err := removals("", keys, filters); err == nil {
			t.Errorf("%d filters are accepted: %.20s", len(filters), filters[0])
		}
	}
	if _, err := removals("", map[string]string{strings.Repeat("a", maxKeys+1): ""}, []string{"*"}); err == nil {
		t.Error("long keys are accepted")
	}
	if err := CheckFilters(slices.Repeat([]string{"!example.com/*"}, MaxFilters)); err != nil {
		t.Errorf("common filters are refused: %v", err)
	}
}
