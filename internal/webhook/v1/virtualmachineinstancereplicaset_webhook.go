// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachineinstancereplicasets,verbs=create;update,versions=v1,name=virtualmachinereplicaset-validator.kubevirt.io,admissionReviewVersions=v1

// replicaSetValidator validates a replica set by the rules for its VMIs.
type replicaSetValidator struct {
	deletable[*v1.VirtualMachineInstanceReplicaSet]
	config ConfigSource
}

var _ admission.Validator[*v1.VirtualMachineInstanceReplicaSet] = (*replicaSetValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *replicaSetValidator) ValidateCreate(
	_ context.Context, set *v1.VirtualMachineInstanceReplicaSet,
) (admission.Warnings, error) {
	return v.validate(nil, set)
}

// validate validates a set. before is the stored template, or nil for a new set.
func (v *replicaSetValidator) validate(
	before *v1.VirtualMachineInstanceTemplateSpec, set *v1.VirtualMachineInstanceReplicaSet,
) (admission.Warnings, error) {
	path, config := field.NewPath("spec"), v.config.Current()
	errs := validateReplicaSet(path, &set.Spec, config)
	errs = append(errs, tooLarge(path.Child("template"), maxTemplate, before, set.Spec.Template)...)
	warnings := replicaSetWarnings(path, &set.Spec)
	if len(errs) == 0 {
		name := set.Name + "xxxxx" // has the length of its VMIs' names
		return append(warnings, errorsOfTemplate(path.Child("template"), set.Namespace, name, set.Spec.Template, config)...),
			nil
	}
	return warnings, specsupport.NewInvalid(v1.VirtualMachineInstanceReplicaSetGroupVersionKind.GroupKind(), set.Name,
		errs)
}

// ValidateUpdate implements admission.Validator. It admits every update that does not change the template or the
// selector: a rule that a later version adds must not block scaling, pausing or deleting a set.
func (v *replicaSetValidator) ValidateUpdate(
	_ context.Context, before, after *v1.VirtualMachineInstanceReplicaSet,
) (admission.Warnings, error) {
	if after.DeletionTimestamp != nil || equality.Semantic.DeepEqual(before.Spec.Template, after.Spec.Template) &&
		equality.Semantic.DeepEqual(before.Spec.Selector, after.Spec.Selector) {
		return nil, nil
	}
	return v.validate(before.Spec.Template, after)
}

func validateReplicaSet(
	path *field.Path, spec *v1.VirtualMachineInstanceReplicaSetSpec, config clusterconfig.Config,
) field.ErrorList {
	if spec.Template == nil {
		return field.ErrorList{field.Required(path.Child("template"), "missing virtual machine template.")}
	}
	errs := validateSpec(path.Child("template", "spec"), &spec.Template.Spec, config)
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	switch {
	case err != nil:
		errs = append(errs, field.Invalid(path.Child("selector"), metav1.FormatLabelSelector(spec.Selector), err.Error()))
	case !selector.Matches(labels.Set(spec.Template.ObjectMeta.Labels)):
		errs = append(errs, field.Invalid(path.Child("selector"), selector.String(), "selector does not match labels."))
	}
	return errs
}

// replicaSetWarnings returns the warnings about a set that KubeVirt admits.
func replicaSetWarnings(path *field.Path, spec *v1.VirtualMachineInstanceReplicaSetSpec) []string {
	if spec.Template == nil {
		return nil
	}
	at := path.Child("template")
	warnings := instanceWarnings(at.Child("spec"), at.Child("metadata"), &spec.Template.Spec,
		spec.Template.ObjectMeta.Annotations)
	if s := spec.Selector; s != nil && len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		warnings = append(warnings,
			path.Child("selector").String()+" is empty: the set takes over every VMI of its namespace that has no owner")
	}
	if len(spec.Template.ObjectMeta.Labels) == 0 {
		warnings = append(warnings,
			at.Child("metadata", "labels").String()+
				" is empty: the set creates no VMIs, because it could not find them afterwards")
	}
	return warnings
}
