// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command crd post-processes the CustomResourceDefinitions that controller-gen generates:
//
//   - it adds the version v1alpha3 to the kinds of kubevirt.io, as in KubeVirt. Both versions have the same schema and
//     one Go package, so v1alpha3 is a copy of v1;
//   - it removes the descriptions of all versions but the stored one. A CRD has to fit into the annotation that
//     `kubectl apply` writes (262144 bytes), and most of a schema are descriptions;
//   - it limits the exponents of quantities to two digits. Kubernetes' parser computes every digit of a number:
//     1e-1000000000 takes hours, in each process that decodes the object.
//
// Its argument is the directory of the CRDs, which it changes in place.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const (
	coreGroup = "kubevirt.io"
	// legacyVersion is the version in which KubeVirt also serves its first kinds
	// (staging/src/kubevirt.io/api/core/v1/register.go).
	legacyVersion = "v1alpha3"
	// quantityPattern is controller-gen's pattern of a quantity, and boundedPattern the same with exponents of at most two
	// digits.
	quantityPattern = `^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$`
	boundedPattern  = `^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?0*[0-9]{1,2}))?$`
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: crd <directory of CRDs>")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "crd:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s has no *.yaml: run controller-gen first", dir)
	}
	for _, file := range files {
		if err := finishFile(file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}

func finishFile(file string) error {
	in, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	crd := map[string]any{}
	if err := yaml.Unmarshal(in, &crd); err != nil {
		return err
	}
	if err := finish(crd); err != nil {
		return err
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append([]byte("---\n"), out...), 0o644)
}

// finish adds the legacy version and removes descriptions except in the stored version.
func finish(crd map[string]any) error {
	versions, found, err := unstructured.NestedSlice(crd, "spec", "versions")
	if err != nil || !found {
		return errors.Join(errors.New("spec.versions: there are none"), err)
	}
	group, _, err := unstructured.NestedString(crd, "spec", "group")
	if err != nil {
		return fmt.Errorf("spec.group: %w", err)
	}
	if group == coreGroup && len(versions) == 1 {
		legacy, err := legacyOf(crd, versions[0])
		if err != nil {
			return err
		}
		versions = append(versions, legacy)
	}
	for i := range versions {
		version, isObject := versions[i].(map[string]any)
		if !isObject {
			return fmt.Errorf("spec.versions[%d]: not an object", i)
		}
		boundQuantities(version["schema"])
		if stored, isBool := version["storage"].(bool); isBool && stored {
			continue
		}
		if schema, isObject := version["schema"].(map[string]any); isObject {
			for _, root := range schema {
				dropDescriptions(root)
			}
		}
	}
	return unstructured.SetNestedSlice(crd, versions, "spec", "versions")
}

// legacyOf returns a copy of the stored version with the older name.
func legacyOf(crd map[string]any, stored any) (map[string]any, error) {
	version, isObject := stored.(map[string]any)
	if !isObject {
		return nil, errors.New("spec.versions[0]: not an object")
	}
	kind, _, err := unstructured.NestedString(crd, "spec", "names", "kind")
	if err != nil {
		return nil, fmt.Errorf("spec.names.kind: %w", err)
	}
	legacy := runtime.DeepCopyJSON(version)
	legacy["name"] = legacyVersion
	// Selectable fields are Vireo's, so that clients of the older version do not use them. The API server (1.36) also
	// rejects a CRD whose versions have the same selectable fields but schemas that differ, even if only in descriptions.
	delete(legacy, "selectableFields")
	legacy["storage"] = false
	legacy["deprecated"] = true
	legacy["deprecationWarning"] = fmt.Sprintf("%s/%s %s is deprecated: use %s/%s", coreGroup, legacyVersion, kind,
		coreGroup, version["name"])
	return legacy, nil
}

// dropDescriptions removes the descriptions from a schema. A property may be named description: it is kept, because its
// value is a schema and not a string.
func dropDescriptions(node any) {
	switch typed := node.(type) {
	case map[string]any:
		if _, isText := typed["description"].(string); isText {
			delete(typed, "description")
		}
		for key, child := range typed {
			// These contain values and not schemas.
			if key == "default" || key == "enum" || key == "example" {
				continue
			}
			dropDescriptions(child)
		}
	case []any:
		for _, child := range typed {
			dropDescriptions(child)
		}
	}
}

// boundQuantities replaces the patterns of quantities in a schema.
func boundQuantities(node any) {
	switch typed := node.(type) {
	case map[string]any:
		if typed["pattern"] == quantityPattern {
			typed["pattern"] = boundedPattern
		}
		for _, child := range typed {
			boundQuantities(child)
		}
	case []any:
		for _, child := range typed {
			boundQuantities(child)
		}
	}
}
