// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
)

// validateMatchers returns the errors of the matchers of a VM. before is the stored VM, or nil for a new one.
func validateMatchers(path *field.Path, before, after *v1.VirtualMachine) field.ErrorList {
	if before == nil {
		return reference.Validate(path, nil, &after.Spec)
	}
	return reference.Validate(path, &before.Spec, &after.Spec)
}

// expand returns the spec of a VM with instance type and preference applied to its template, and whether a VMI would be
// created from this spec. Objects that do not exist yet are not applied, because a VM may be created before the objects
// to which it refers. The VM is not changed.
func (v *vmValidator) expand(
	ctx context.Context, vm *v1.VirtualMachine, config clusterconfig.Config,
) (spec *v1.VirtualMachineSpec, complete bool, errs field.ErrorList) {
	if vm.Spec.Template == nil || vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
		return &vm.Spec, vm.Spec.Template != nil, nil
	}
	specs, err := v.finder.Find(ctx, vm)
	if err != nil {
		return &vm.Spec, false, nil // The VM's reconciler reports the error.
	}
	if err := instancetype.CheckTopology(specs.Instancetype, specs.Preference); err != nil {
		return &vm.Spec, false, field.ErrorList{err}
	}
	template, conflicts := instancetype.Expand(reference.TemplateOf(&vm.Spec, specs), specs.Instancetype, specs.Preference)
	if len(conflicts) > 0 {
		return &vm.Spec, false, conflicts.Admission()
	}
	expanded := vm.Spec
	expanded.Template = template
	if specs.Preference != nil {
		vmi := &v1.VirtualMachineInstance{Spec: *template.Spec.DeepCopy()}
		setDefaults(vmi, config)
		var unmet *instancetype.RequirementError
		if errors.As(instancetype.CheckRequirements(&vmi.Spec, specs.Instancetype, specs.Preference), &unmet) {
			errs = append(errs, unmet.Admission()...)
		}
	}
	return &expanded, true, errs
}
