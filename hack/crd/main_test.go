// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

const oneVersion = `
spec:
  group: kubevirt.io
  names: {kind: VirtualMachine}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Age, type: date, jsonPath: .metadata.creationTimestamp}]
    subresources: {status: {}}
    selectableFields: [{jsonPath: .status.nodeName}]
    schema:
      openAPIV3Schema:
        description: a machine
        properties:
          description: {type: string, description: a field of this name}
          named:
            type: object
            default: {description: kept}
`

func TestFinish(t *testing.T) {
	crd := parse(t, oneVersion)
	if err := finish(crd); err != nil {
		t.Fatal(err)
	}
	want := parse(t, oneVersion)
	spec := want["spec"].(map[string]any)
	spec["versions"] = append(spec["versions"].([]any), parse(t, `
name: v1alpha3
served: true
storage: false
deprecated: true
deprecationWarning: "kubevirt.io/v1alpha3 VirtualMachine is deprecated: use kubevirt.io/v1"
additionalPrinterColumns: [{name: Age, type: date, jsonPath: .metadata.creationTimestamp}]
subresources: {status: {}}
schema:
  openAPIV3Schema:
    properties:
      description: {type: string}
      named:
        type: object
        default: {description: kept}
`))
	if diff := cmp.Diff(want, crd); diff != "" {
		t.Errorf("finished CRD (-want +got):\n%s", diff)
	}
	again := runtime.DeepCopyJSON(crd)
	if err := finish(again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(crd, again); diff != "" {
		t.Errorf("a second time changes it (-want +got):\n%s", diff)
	}
}

func TestFinishLeavesOtherGroups(t *testing.T) {
	crd := parse(t, oneVersion)
	crd["spec"].(map[string]any)["group"] = "clone.kubevirt.io"
	want := runtime.DeepCopyJSON(crd)
	if err := finish(crd); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, crd); diff != "" {
		t.Errorf("CRD of another group (-want +got):\n%s", diff)
	}
}

func TestRunRefuses(t *testing.T) {
	if err := run(t.TempDir()); err == nil {
		t.Error("an empty directory was taken")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("spec: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(dir); err == nil {
		t.Error("a CRD without versions was taken")
	}
}
