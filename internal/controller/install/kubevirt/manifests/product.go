// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// ProductLabels returns the labels of the product that a KubeVirt object names, and the errors of names that cannot be
// labels. These are left out, as in KubeVirt.
func ProductLabels(spec *v1.KubeVirtSpec) (map[string]string, field.ErrorList) {
	labels := map[string]string{}
	var errs field.ErrorList
	for _, name := range []struct{ field, label, value string }{
		{"productName", v1.AppPartOfLabel, spec.ProductName},
		{"productVersion", v1.AppVersionLabel, spec.ProductVersion},
		{"productComponent", v1.AppComponentLabel, spec.ProductComponent},
	} {
		if name.value == "" {
			continue
		}
		if problems := validation.IsValidLabelValue(name.value); len(problems) > 0 {
			errs = append(errs, field.Invalid(field.NewPath("spec", name.field), name.value, strings.Join(problems, "; ")))
			continue
		}
		labels[name.label] = name.value
	}
	return labels, errs
}

// labelsOf returns the labels of an object. A patch cannot change those by which it is found.
func labelsOf(name string, own, product map[string]string) map[string]string {
	labels := productLabels(own, product)
	labels[v1.AppLabel] = name
	return labels
}

// productLabels adds the labels of the product to others. They are KubeVirt's.
func productLabels(own, product map[string]string) map[string]string {
	labels := mergeMaps(map[string]string{v1.AppComponentLabel: v1.AppComponent, v1.AppPartOfLabel: v1.AppComponent}, own)
	maps.Copy(labels, product)
	labels[ManagedByLabel] = ManagedBy
	return labels
}

// mergeMaps returns the entries of both. Those of the second win.
func mergeMaps(a, b map[string]string) map[string]string {
	merged := maps.Clone(a)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, b)
	return merged
}
