// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=instancetype.kubevirt.io,resources=virtualmachineinstancetypes,verbs=create;update,versions=v1beta1,name=virtualmachineinstancetype-validator.instancetype.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=instancetype.kubevirt.io,resources=virtualmachineclusterinstancetypes,verbs=create;update,versions=v1beta1,name=virtualmachineclusterinstancetype-validator.instancetype.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=instancetype.kubevirt.io,resources=virtualmachinepreferences,verbs=create;update,versions=v1beta1,name=virtualmachinepreference-validator.instancetype.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=instancetype.kubevirt.io,resources=virtualmachineclusterpreferences,verbs=create;update,versions=v1beta1,name=virtualmachineclusterpreference-validator.instancetype.kubevirt.io,admissionReviewVersions=v1

// instancetypeHooks are the webhooks of instance types and preferences, by name.
func instancetypeHooks(scheme *runtime.Scheme) map[string]*admission.Webhook {
	return map[string]*admission.Webhook{
		"virtualmachineinstancetype-validator.instancetype.kubevirt.io":        admission.WithValidator(scheme, instancetypeValidator[*v1beta1.VirtualMachineInstancetype]{}),
		"virtualmachineclusterinstancetype-validator.instancetype.kubevirt.io": admission.WithValidator(scheme, instancetypeValidator[*v1beta1.VirtualMachineClusterInstancetype]{}),
		"virtualmachinepreference-validator.instancetype.kubevirt.io":          admission.WithValidator(scheme, instancetypeValidator[*v1beta1.VirtualMachinePreference]{}),
		"virtualmachineclusterpreference-validator.instancetype.kubevirt.io":   admission.WithValidator(scheme, instancetypeValidator[*v1beta1.VirtualMachineClusterPreference]{}),
	}
}

// instancetypeValidator validates instance types or preferences of a kind. The rules do not depend on the VMs that
// refer to them, because these have copies.
type instancetypeValidator[T client.Object] struct {
	deletable[T]
}

// ValidateCreate implements admission.Validator.
func (v instancetypeValidator[T]) ValidateCreate(_ context.Context, object T) (admission.Warnings, error) {
	path := field.NewPath("spec")
	var errs field.ErrorList
	var warnings []string
	if spec := reference.InstancetypeSpec(object); spec != nil {
		errs, warnings = instancetype.ValidateInstancetype(spec, path)
	}
	if spec := reference.PreferenceSpec(object); spec != nil {
		errs, warnings = instancetype.ValidatePreference(spec, path)
	}
	if len(errs) == 0 {
		return warnings, nil
	}
	kind, err := reference.KindOf(object)
	if err != nil {
		return nil, err
	}
	return warnings, specsupport.NewInvalid(v1beta1.GroupVersion.WithKind(kind.Name).GroupKind(), object.GetName(), errs)
}

// ValidateUpdate implements admission.Validator.
func (v instancetypeValidator[T]) ValidateUpdate(ctx context.Context, _, after T) (admission.Warnings, error) {
	if after.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	return v.ValidateCreate(ctx, after)
}
