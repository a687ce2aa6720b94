// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=pool.kubevirt.io,resources=virtualmachinepools,verbs=create;update,versions=v1beta1,name=virtualmachinepool-validator.kubevirt.io,admissionReviewVersions=v1

// poolValidator validates a pool, and its template by the rules for VMs.
type poolValidator struct {
	deletable[*poolv1.VirtualMachinePool]
	config ConfigSource
}

var _ admission.Validator[*poolv1.VirtualMachinePool] = (*poolValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *poolValidator) ValidateCreate(_ context.Context, pool *poolv1.VirtualMachinePool) (admission.Warnings, error) {
	return v.validate(nil, pool)
}

// validate validates a pool. before is the stored template, or nil for a new pool. found are errors that the caller has
// already found.
func (v *poolValidator) validate(
	before *poolv1.VirtualMachineTemplateSpec, pool *poolv1.VirtualMachinePool, found ...*field.Error,
) (admission.Warnings, error) {
	path, config := field.NewPath("spec"), v.config.Current()
	errs := append(validatePool(path, &pool.Spec, config), found...)
	errs = append(errs, tooLarge(path.Child("virtualMachineTemplate"), maxTemplate, before,
		pool.Spec.VirtualMachineTemplate)...)
	if pool.Spec.VirtualMachineTemplate != nil {
		errs = append(errs, foreignDataVolumes(path.Child("virtualMachineTemplate", "spec"), vmOfPool(pool), nil)...)
	}
	warnings := poolWarnings(path, &pool.Spec)
	if len(errs) == 0 {
		vm := vmOfPool(pool)
		if vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
			at := path.Child("virtualMachineTemplate", "spec", "template")
			warnings = append(warnings, errorsOfTemplate(at, vm.Namespace, vm.Name, vm.Spec.Template, config)...)
		}
		return warnings, nil
	}
	kind := poolv1.GroupVersion.WithKind(poolapi.VirtualMachinePoolKind).GroupKind()
	return warnings, specsupport.NewInvalid(kind, pool.Name, errs)
}

// ValidateUpdate implements admission.Validator. It validates only updates that change fields with rules: a rule that a
// later version adds must not block scaling, pausing or deleting a pool.
func (v *poolValidator) ValidateUpdate(
	_ context.Context, before, after *poolv1.VirtualMachinePool,
) (admission.Warnings, error) {
	scaled := before.Spec.DeepCopy()
	scaled.Replicas, scaled.Paused = after.Spec.Replicas, after.Spec.Paused
	if after.DeletionTimestamp != nil || equality.Semantic.DeepEqual(scaled, &after.Spec) {
		return nil, nil
	}
	if !equality.Semantic.DeepEqual(before.Spec.Selector, after.Spec.Selector) {
		return v.validate(before.Spec.VirtualMachineTemplate, after,
			field.Invalid(field.NewPath("spec", "selector"), metav1.FormatLabelSelector(after.Spec.Selector),
				"selector is immutable after creation."))
	}
	return v.validate(before.Spec.VirtualMachineTemplate, after)
}

// vmOfPool returns a VM of a pool, with a name of the usual length.
func vmOfPool(pool *poolv1.VirtualMachinePool) *v1.VirtualMachine {
	template := pool.Spec.VirtualMachineTemplate
	vm := &v1.VirtualMachine{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	vm.Namespace, vm.Name = pool.Namespace, pool.Name+"-0"
	return vm
}

func validatePool(path *field.Path, spec *poolv1.VirtualMachinePoolSpec, config clusterconfig.Config) field.ErrorList {
	template := path.Child("virtualMachineTemplate")
	if spec.VirtualMachineTemplate == nil {
		return field.ErrorList{field.Required(template, "missing virtual machine template.")}
	}
	// As in KubeVirt, the instance type and the preference are not checked, because they may be created or deleted later.
	vm := spec.VirtualMachineTemplate.Spec.DeepCopy()
	vm.Instancetype, vm.Preference = nil, nil
	errs := validateVM(template.Child("spec"), vm, config, false)
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	switch {
	case err != nil:
		errs = append(errs, field.Invalid(path.Child("selector"), metav1.FormatLabelSelector(spec.Selector), err.Error()))
	case !selector.Matches(labels.Set(spec.VirtualMachineTemplate.ObjectMeta.Labels)):
		errs = append(errs, field.Invalid(path.Child("selector"), selector.String(), "selector does not match labels."))
	}
	errs = append(errs, validateMaxUnavailable(path.Child("maxUnavailable"), spec.MaxUnavailable)...)
	errs = append(errs, validateScaleIn(path.Child("scaleInStrategy"), spec.ScaleInStrategy)...)
	return append(errs, validateUpdates(path.Child("updateStrategy"), spec.UpdateStrategy)...)
}

// validateMaxUnavailable returns KubeVirt's errors.
func validateMaxUnavailable(path *field.Path, value *intstr.IntOrString) field.ErrorList {
	var wrong string
	switch {
	case value == nil:
		return nil
	case value.Type == intstr.Int:
		if value.IntVal > 0 {
			return nil
		}
		wrong = "maxUnavailable must be greater than 0"
	case !strings.HasSuffix(value.StrVal, "%"):
		wrong = "maxUnavailable percentage must end with %"
	default:
		percent, err := strconv.Atoi(strings.TrimSuffix(value.StrVal, "%"))
		switch {
		case err != nil:
			wrong = fmt.Sprintf("maxUnavailable percentage value %q is invalid: %v", value.StrVal, err)
		case percent < 1 || percent > 100:
			wrong = fmt.Sprintf("maxUnavailable percentage value %d must be between 1 and 100", percent)
		default:
			return nil
		}
	}
	return field.ErrorList{field.Invalid(path, value.String(), wrong)}
}

func validateScaleIn(path *field.Path, strategy *poolv1.VirtualMachinePoolScaleInStrategy) field.ErrorList {
	if strategy == nil {
		return nil
	}
	errs := validateOneStrategy(path, strategy.Unmanaged != nil, strategy.Opportunistic != nil, strategy.Proactive != nil)
	if strategy.Proactive != nil {
		errs = append(errs, validateSelection(path.Child("proactive", "selectionPolicy"),
			strategy.Proactive.SelectionPolicy)...)
	}
	return errs
}

func validateUpdates(path *field.Path, strategy *poolv1.VirtualMachinePoolUpdateStrategy) field.ErrorList {
	if strategy == nil {
		return nil
	}
	errs := validateOneStrategy(path, strategy.Unmanaged != nil, strategy.Opportunistic != nil, strategy.Proactive != nil)
	if strategy.Proactive != nil {
		errs = append(errs, validateSelection(path.Child("proactive", "selectionPolicy"),
			strategy.Proactive.SelectionPolicy)...)
	}
	return errs
}

func validateOneStrategy(path *field.Path, unmanaged, opportunistic, proactive bool) field.ErrorList {
	var names []string
	for _, strategy := range []struct {
		name string
		set  bool
	}{{"unmanaged", unmanaged}, {"opportunistic", opportunistic}, {"proactive", proactive}} {
		if strategy.set {
			names = append(names, strategy.name)
		}
	}
	if len(names) < 2 {
		return nil
	}
	return field.ErrorList{field.Forbidden(path, fmt.Sprintf(
		"only one strategy can be configured at a time: but found <%s> strategies", strings.Join(names, ", ")))}
}

// validateSelection rejects selectors that select nothing because they are invalid. KubeVirt admits them.
func validateSelection(path *field.Path, policy *poolv1.VirtualMachinePoolSelectionPolicy) field.ErrorList {
	if policy == nil || policy.Selectors == nil {
		return nil
	}
	var errs field.ErrorList
	path = path.Child("selectors")
	if selector := policy.Selectors.LabelSelector; selector != nil {
		if _, err := metav1.LabelSelectorAsSelector(selector); err != nil {
			errs = append(errs, field.Invalid(path.Child("labelSelector"), metav1.FormatLabelSelector(selector), err.Error()))
		}
	}
	if requirements := policy.Selectors.NodeSelectorRequirementMatcher; requirements != nil {
		for i := range *requirements {
			at := path.Child("nodeSelectorRequirementMatcher").Index(i)
			if _, err := poolapi.NodeSelector((*requirements)[i : i+1]); err != nil {
				errs = append(errs, field.Invalid(at, nodeRequirement(&(*requirements)[i]), err.Error()))
			}
		}
	}
	return errs
}

func nodeRequirement(r *corev1.NodeSelectorRequirement) string {
	return fmt.Sprintf("%s %s (%s)", r.Key, r.Operator, strings.Join(r.Values, ","))
}

// poolWarnings returns the warnings about a pool that KubeVirt admits.
func poolWarnings(path *field.Path, spec *poolv1.VirtualMachinePoolSpec) []string {
	if spec.VirtualMachineTemplate == nil {
		return nil
	}
	at := path.Child("virtualMachineTemplate", "spec")
	warnings := vmWarnings(at, &spec.VirtualMachineTemplate.Spec)
	selector, err := metav1.LabelSelectorAsSelector(spec.Selector)
	if template := spec.VirtualMachineTemplate.Spec.Template; err == nil && template != nil &&
		selector.Matches(labels.Set(spec.VirtualMachineTemplate.ObjectMeta.Labels)) &&
		!selector.Matches(labels.Set(template.ObjectMeta.Labels)) {
		warnings = append(warnings, at.Child("template", "metadata", "labels").String()+
			" do not match spec.selector: an autoscaler finds no Pods of the pool")
	}
	return warnings
}
