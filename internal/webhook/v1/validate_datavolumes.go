// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// foreignDataVolumes rejects templates of DataVolumes in another namespace. As in KubeVirt, it accepts templates that
// do not change.
func foreignDataVolumes(path *field.Path, vm, before *v1.VirtualMachine) field.ErrorList {
	if before != nil && equality.Semantic.DeepEqual(before.Spec.DataVolumeTemplates, vm.Spec.DataVolumeTemplates) {
		return nil
	}
	var errs field.ErrorList
	for i := range vm.Spec.DataVolumeTemplates {
		if namespace := vm.Spec.DataVolumeTemplates[i].Namespace; namespace != "" && namespace != vm.Namespace {
			errs = append(errs, field.Invalid(path.Child("dataVolumeTemplates").Index(i), namespace,
				fmt.Sprintf("Embedded DataVolume namespace %s differs from VM namespace %s", namespace, vm.Namespace)))
		}
	}
	return errs
}

// validateDataVolumeTemplates rejects templates from which no DataVolume can be created, and unused templates, with one
// error each. The messages and the paths are KubeVirt's. Clients read the paths, although they are not those of the
// fields.
func validateDataVolumeTemplates(path *field.Path, spec *v1.VirtualMachineSpec) field.ErrorList {
	used := map[string]bool{}
	for i := range spec.Template.Spec.Volumes {
		volume := &spec.Template.Spec.Volumes[i]
		if volume.DataVolume != nil {
			used[volume.DataVolume.Name] = true
		}
		if volume.PersistentVolumeClaim != nil {
			used[volume.PersistentVolumeClaim.ClaimName] = true
		}
	}
	var errs field.ErrorList
	for i := range spec.DataVolumeTemplates {
		template, at := &spec.DataVolumeTemplates[i], path.Child("dataVolumeTemplate").Index(i)
		fault := validateDataVolume(at, template)
		if fault == nil && !used[template.Name] {
			fault = field.Required(at,
				"DataVolumeTemplate entry "+at.String()+" must be referenced in the VMI template's 'volumes' list")
		}
		if fault != nil {
			errs = append(errs, fault)
		}
	}
	return errs
}

func validateDataVolume(at *field.Path, template *v1.DataVolumeTemplateSpec) *field.Error {
	spec := &template.Spec
	switch {
	case template.Name == "":
		name := at.Child("name")
		return field.Required(name, "'name' field must not be empty for DataVolumeTemplate entry "+name.String()+".")
	case spec.PVC == nil && spec.Storage == nil:
		return field.Invalid(at.Child("PVC", "Storage"), "", "Missing Data volume PVC or Storage")
	case spec.PVC != nil && spec.Storage != nil:
		return field.Invalid(at.Child("PVC", "Storage"), "",
			"Duplicate storage definition, both target storage and target pvc defined")
	}
	populated, sources := externallyPopulated(spec), countSet(spec.Source)
	switch {
	case populated && (spec.Source != nil || spec.SourceRef != nil):
		return field.Invalid(at.Child("source"), "", "External population is incompatible with Source and SourceRef")
	case !populated && spec.Source == nil && spec.SourceRef == nil:
		return field.Invalid(at.Child("source", "sourceRef"), "",
			"Data volume should have either Source, SourceRef, or be externally populated")
	case spec.Source != nil && sources == 0:
		return field.Invalid(at.Child("source"), "", "Missing dataVolume valid source")
	case sources > 1:
		return field.Invalid(at.Child("source"), "", "Multiple dataVolume sources")
	}
	return nil
}

// externallyPopulated reports whether the claim has a data source of its own, so that CDI does not fill it.
func externallyPopulated(spec *cdiv1beta1.DataVolumeSpec) bool {
	var source *corev1.TypedLocalObjectReference
	var ref *corev1.TypedObjectReference
	if spec.PVC != nil {
		source, ref = spec.PVC.DataSource, spec.PVC.DataSourceRef
	} else {
		source, ref = spec.Storage.DataSource, spec.Storage.DataSourceRef
	}
	return source != nil || ref != nil
}

// countSet returns how many fields of the struct that source points to are not nil, or 0 for a nil pointer. All fields
// are pointers. So it also counts kinds of sources that are added to the API later.
func countSet[T any](source *T) int {
	if source == nil {
		return 0
	}
	n := 0
	for _, member := range reflect.ValueOf(source).Elem().Fields() {
		if !member.IsNil() {
			n++
		}
	}
	return n
}
