// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtctl_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files")

// expectGolden expects the text of a file in testdata.
func expectGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// expectValid expects a manifest that is valid for one of our CRDs, without unknown fields.
func expectValid(t *testing.T, crdFile, version, manifest string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../../config/crd/bases", crdFile))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, crd); err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := yaml.UnmarshalStrict([]byte(manifest), &object); err != nil {
		t.Fatal(err)
	}
	for _, v := range crd.Spec.Versions {
		if v.Name != version {
			continue
		}
		internal := &apiextensions.JSONSchemaProps{}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v.Schema.OpenAPIV3Schema,
			internal, nil); err != nil {
			t.Fatal(err)
		}
		validator, _, err := validation.NewSchemaValidator(internal)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range validation.ValidateCustomResource(nil, object, validator) {
			t.Errorf("the manifest is invalid: %v", fault)
		}
		structural, err := structuralschema.NewStructural(internal)
		if err != nil {
			t.Fatal(err)
		}
		options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
		if unknown := pruning.PruneWithOptions(object, structural, true, options); len(unknown) > 0 {
			t.Errorf("unknown fields %v", unknown)
		}
		return
	}
	t.Fatalf("%s has no version %s", crdFile, version)
}
