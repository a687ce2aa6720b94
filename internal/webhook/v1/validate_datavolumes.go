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

// foreignDataVolumes finds templates of DataVolumes in another namespace. As in KubeVirt, those that a VM has already do not keep it
// from being changed.
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

// validateDataVolumeTemplates finds templates of which no DataVolume could be made, or which nothing uses. The first fault of each
// counts. The words are KubeVirt's, and so are the paths, which its clients read although no field is called so.
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
			fault = field.Required(at, "DataVolumeTemplate entry "+at.String()+" must be referenced in the VMI template's 'volumes' list")
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
		return field.Invalid(at.Child("PVC", "Storage"), "", "Duplicate storage definition, both target storage and target pvc defined")
	}
	populated, sources := externallyPopulated(spec), numberOfSources(spec.Source)
	switch {
	case populated && (spec.Source != nil || spec.SourceRef != nil):
		return field.Invalid(at.Child("source"), "", "External population is incompatible with Source and SourceRef")
	case !populated && spec.Source == nil && spec.SourceRef == nil:
		return field.Invalid(at.Child("source", "sourceRef"), "", "Data volume should have either Source, SourceRef, or be externally populated")
	case spec.Source != nil && sources == 0:
		return field.Invalid(at.Child("source"), "", "Missing dataVolume valid source")
	case sources > 1:
		return field.Invalid(at.Child("source"), "", "Multiple dataVolume sources")
	}
	return nil
}

// externallyPopulated says that the claim names what fills it, which the importer then does not.
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

// numberOfSources counts by the type's fields, so that a new kind of source is one here as well.
func numberOfSources(source *cdiv1beta1.DataVolumeSource) int {
	if source == nil {
		return 0
	}
	count := 0
	for _, value := range reflect.ValueOf(source).Elem().Fields() {
		if !value.IsNil() {
			count++
		}
	}
	return count
}
