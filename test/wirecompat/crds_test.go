// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	backupv1alpha1 "github.com/vireo-project/vireo/api/backup/v1alpha1"
	clonev1alpha1 "github.com/vireo-project/vireo/api/clone/v1alpha1"
	clonev1beta1 "github.com/vireo-project/vireo/api/clone/v1beta1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	exportv1beta1 "github.com/vireo-project/vireo/api/export/v1beta1"
	instancetypev1beta1 "github.com/vireo-project/vireo/api/instancetype/v1beta1"
	migrationsv1alpha1 "github.com/vireo-project/vireo/api/migrations/v1alpha1"
	poolv1alpha1 "github.com/vireo-project/vireo/api/pool/v1alpha1"
	poolv1beta1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	snapshotv1alpha1 "github.com/vireo-project/vireo/api/snapshot/v1alpha1"
	snapshotv1beta1 "github.com/vireo-project/vireo/api/snapshot/v1beta1"
	kubevirtv1 "github.com/vireo-project/vireo/api/v1"
)

func readCRDs(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	crds := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(content, crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		crds[crd.Name] = crd
	}
	return crds
}

// There is no conversion between the versions of a CRD, so a version with another schema than the stored one would lose
// fields: docs/adr/0019. Descriptions may differ.
func TestVersionsShareASchema(t *testing.T) {
	for name, crd := range readCRDs(t) {
		first := &crd.Spec.Versions[0]
		for i := range crd.Spec.Versions[1:] {
			other := &crd.Spec.Versions[i+1]
			c := &schemaComparison{}
			c.compare(name, first.Schema.OpenAPIV3Schema, other.Schema.OpenAPIV3Schema)
			for _, d := range c.differences {
				t.Errorf("%s and %s: %v", first.Name, other.Name, d)
			}
		}
	}
}

// Every field has a description for `kubectl explain`, except in versions that are not stored: hack/crd.
func TestFieldsAreDocumented(t *testing.T) {
	for name, crd := range readCRDs(t) {
		for _, version := range crd.Spec.Versions {
			if !version.Storage {
				continue
			}
			for _, path := range undocumented("", version.Schema.OpenAPIV3Schema) {
				t.Errorf("%s %s: %s has no description", name, version.Name, path)
			}
		}
	}
}

// undocumented returns the paths of fields without a description, apart from metadata, which the API server describes.
func undocumented(path string, s *apiextensionsv1.JSONSchemaProps) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		at := path + "." + name
		if property.Description == "" && at != ".metadata" {
			all = append(all, at)
		}
		all = append(all, undocumented(at, &property)...)
	}
	if s.Items != nil && s.Items.Schema != nil {
		all = append(all, undocumented(path+"[]", s.Items.Schema)...)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		all = append(all, undocumented(path+"{}", s.AdditionalProperties.Schema)...)
	}
	return all
}

// Each kind in each version has a Go type of its own, so that a scheme with all groups finds the kind of an object.
func TestSchemeDistinguishesVersions(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubevirtv1.AddToScheme, instancetypev1beta1.AddToScheme, snapshotv1alpha1.AddToScheme, snapshotv1beta1.AddToScheme,
		clonev1alpha1.AddToScheme, clonev1beta1.AddToScheme, poolv1alpha1.AddToScheme, poolv1beta1.AddToScheme,
		exportv1.AddToScheme, exportv1beta1.AddToScheme, migrationsv1alpha1.AddToScheme, backupv1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pairs {
		if p.crd == "" {
			continue
		}
		object, isObject := reflect.New(reflect.TypeOf(p.ours)).Interface().(runtime.Object)
		if !isObject {
			t.Errorf("%s: no runtime.Object", p.name())
			continue
		}
		group, _, _ := strings.Cut(p.crd, "_")
		want := schema.GroupVersionKind{Group: group, Version: p.version, Kind: reflect.TypeOf(p.upstream).Name()}
		got, _, err := scheme.ObjectKinds(object)
		if err != nil || !slices.Equal(got, []schema.GroupVersionKind{want}) {
			t.Errorf("%s: %v, %v; want %v", p.name(), got, err, want)
		}
	}
}
