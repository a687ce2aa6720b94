// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reference

import (
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
)

// ExpandVM returns a copy of a VM with the objects to which it refers applied, and without the matchers and the
// references in the status. If there are conflicts, it returns an unchanged copy.
func ExpandVM(vm *v1.VirtualMachine, specs Specs) (*v1.VirtualMachine, instancetype.Conflicts) {
	expanded := vm.DeepCopy()
	if vm.Spec.Template != nil {
		template, conflicts := instancetype.Expand(TemplateOf(&vm.Spec, specs), specs.Instancetype, specs.Preference)
		if len(conflicts) > 0 {
			return expanded, conflicts
		}
		expanded.Spec.Template = template
	}
	for i := range expanded.Spec.DataVolumeTemplates {
		made := &expanded.Spec.DataVolumeTemplates[i]
		made.Spec = *instancetype.WithStorageClass(&made.Spec, specs.Preference)
	}
	expanded.Spec.Instancetype, expanded.Spec.Preference = nil, nil
	for _, class := range Classes {
		class.SetRef(&expanded.Status, nil)
	}
	return expanded, nil
}
