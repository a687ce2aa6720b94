// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
)

// expandedTemplate is a template with devices that preferences apply to. Its spec sets nothing that an instance type
// sets.
const expandedTemplate = `{networks: [{name: nic, pod: {}}], domain: {devices: {interfaces: [{name: nic}], inputs: [{name: input}],
  sound: {name: sound}, disks: [{name: disk}, {name: lun, lun: {}}, {name: cd, cdrom: {}}]}}}`

// expandedSize is the least of an instance type.
const expandedSize = `{cpu: {guest: 8}, memory: {guest: 1Gi}}`

// notApplied are leaves of both kinds, or their parents, that Expand does not apply, with the reason.
var notApplied = map[string]string{
	"devices.preferredVirtualGPUOptions": "KubeVirt has the field and applies it nowhere",
	"requirements":                       "instancetype.CheckRequirements compares the VM with it",
	"volumes.preferredStorageClassName":  "instancetype.WithStorageClass applies it to DataVolumes",
}

// preferenceScenes are preferences in which a field has a meaning.
var preferenceScenes = map[string]string{
	"cpu.spreadOptions":                      `{cpu: {preferredCPUTopology: spread}}`,
	"preferSpreadSocketToCoreRatio":          `{cpu: {preferredCPUTopology: spread}}`,
	"devices.preferredDiskDedicatedIoThread": `{devices: {preferredDiskBus: virtio}}`,
	"firmware.preferredUseBiosSerial":        `{firmware: {preferredUseBios: true}}`,
	"firmware.preferredUseSecureBoot":        `{firmware: {preferredUseEfi: true}}`,
}

// referenceValues are values of leaves for which no sample of the type has an effect.
var referenceValues = map[string]string{
	"cpu.preferredCPUTopology":      `cores`,
	"cpu.spreadOptions.across":      `CoresThreads`,
	"cpu.spreadOptions.ratio":       `4`,
	"preferSpreadSocketToCoreRatio": `4`,
}

// TestLivenessOfInstancetypes tries every leaf of an instance type's spec.
func TestLivenessOfInstancetypes(t *testing.T) {
	for _, l := range leavesOf(reflect.TypeFor[v1beta1.VirtualMachineInstancetypeSpec]()) {
		t.Run(l.path, func(t *testing.T) {
			expectApplied(t, l, func() *v1beta1.VirtualMachineInstancetypeSpec {
				return read[v1beta1.VirtualMachineInstancetypeSpec](t, expandedSize)
			}, func(spec *v1beta1.VirtualMachineInstancetypeSpec) *v1.VirtualMachineInstanceTemplateSpec {
				return expanded(t, spec, nil)
			})
		})
	}
}

// TestLivenessOfPreferences tries every leaf of a preference's spec, with an instance type.
func TestLivenessOfPreferences(t *testing.T) {
	leaves := leavesOf(reflect.TypeFor[v1beta1.VirtualMachinePreferenceSpec]())
	for _, l := range leaves {
		t.Run(l.path, func(t *testing.T) {
			expectApplied(t, l, func() *v1beta1.VirtualMachinePreferenceSpec {
				spec := &v1beta1.VirtualMachinePreferenceSpec{}
				for prefix, scene := range preferenceScenes {
					if isOrBelow(l.path, prefix) {
						spec = read[v1beta1.VirtualMachinePreferenceSpec](t, scene)
					}
				}
				return spec
			}, func(spec *v1beta1.VirtualMachinePreferenceSpec) *v1.VirtualMachineInstanceTemplateSpec {
				return expanded(t, read[v1beta1.VirtualMachineInstancetypeSpec](t, expandedSize), spec)
			})
		})
	}
	for path := range notApplied {
		if !slices.ContainsFunc(leaves, func(l leaf) bool { return isOrBelow(l.path, path) }) {
			t.Errorf("%s is in notApplied but is no field", path)
		}
	}
}

// expectApplied fails the test if a leaf changes the expanded template and is in notApplied, or neither.
func expectApplied[T any](t *testing.T, l leaf, scene func() *T,
	expand func(*T) *v1.VirtualMachineInstanceTemplateSpec) {
	t.Helper()
	texts := samples(l.typ)
	if text, ok := referenceValues[l.path]; ok {
		texts = []string{text}
	}
	applied := false
	var errs []error
	for _, text := range texts {
		with, without := scene(), scene()
		// Both have the parents of the leaf, so that only the leaf differs.
		at(reflect.ValueOf(without), l.path)
		if err := yaml.UnmarshalStrict([]byte(text), at(reflect.ValueOf(with), l.path).Addr().Interface()); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", text, err))
			continue
		}
		applied = applied || !equality.Semantic.DeepEqual(expand(without), expand(with))
	}
	reason := ""
	for path, why := range notApplied {
		if isOrBelow(l.path, path) {
			reason = why
		}
	}
	switch {
	case applied && reason != "":
		t.Errorf("changes the expanded template, and is in notApplied: %s", reason)
	case !applied && reason == "":
		t.Errorf("has no effect: %v", errors.Join(errs...))
	}
}

func expanded(
	t *testing.T, size *v1beta1.VirtualMachineInstancetypeSpec, preference *v1beta1.VirtualMachinePreferenceSpec,
) *v1.VirtualMachineInstanceTemplateSpec {
	t.Helper()
	template := &v1.VirtualMachineInstanceTemplateSpec{Spec: *read[v1.VirtualMachineInstanceSpec](t, expandedTemplate)}
	out, conflicts := instancetype.Expand(template, size, preference)
	if len(conflicts) > 0 {
		t.Fatalf("conflicts: %v", conflicts)
	}
	return out
}

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return object
}

// rowOfPage is a row of a table of docs/spec/instancetype.md: the fields in its first column.
var rowOfPage = regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|")

// TestPageOfInstancetypes checks that each table of docs/spec/instancetype.md has the fields that there are.
func TestPageOfInstancetypes(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "spec", "instancetype.md"))
	if err != nil {
		t.Fatal(err)
	}
	sizes, preferences := instancetype.Fields()
	// The fields by which a preference changes another field's row, and those that are not applied.
	preferences = append(preferences, "cpu.preferredCPUTopology", "cpu.spreadOptions", "preferSpreadSocketToCoreRatio")
	preferences = slices.AppendSeq(preferences, maps.Keys(notApplied))
	for heading, want := range map[string][]string{"## Instance types": sizes, "## Preferences": preferences} {
		_, section, found := strings.Cut(string(raw), heading+"\n")
		if !found {
			t.Fatalf("the page has no %q", heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		var got []string
		for _, row := range rowOfPage.FindAllStringSubmatch(section, -1) {
			for _, name := range strings.Split(row[1], ", ") {
				got = append(got, strings.Trim(name, "`"))
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the page lists\n%q\nand the fields are\n%q", heading, got, want)
		}
	}
}
