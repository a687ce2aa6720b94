// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package fieldsupport

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// HookSidecarAnnotation asks for programs beside the launcher that rewrite the domain. Source: kubevirt/kubevirt pkg/hooks.
const HookSidecarAnnotation = "hooks.kubevirt.io/hookSidecars"

// Annotations is about those of a VMI, and so about those of a VM's template. The paths are their keys.
var Annotations = []Field{
	{v1.IgnitionAnnotation, nil, Refuse, "Ignition data is not implemented yet: use cloud-init"},
	{HookSidecarAnnotation, nil, Refuse, "hook sidecars are not implemented yet: leave it out"},
}

// InAnnotations returns what a VMI's annotations ask for in vain. The path is that of its metadata.
func InAnnotations(path *field.Path, annotations map[string]string) []Finding {
	var found []Finding
	for i := range Annotations {
		row := &Annotations[i]
		value := annotations[row.Path]
		if value == "" || len(row.Values) > 0 && !slices.Contains(row.Values, value) {
			continue
		}
		found = append(found, Finding{path.Child("annotations").Key(row.Path), row})
	}
	return found
}
