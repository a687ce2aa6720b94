// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// +kubebuilder:webhook:path=/,mutating=true,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachineinstances,verbs=create,versions=v1,name=virtualmachineinstances-mutator.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachineinstances,verbs=create,versions=v1,name=virtualmachineinstances-create-validator.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachineinstances,verbs=update,versions=v1,name=virtualmachineinstances-update-validator.kubevirt.io,admissionReviewVersions=v1

// vmiDefaulter sets the defaults and the finalizer of a new VMI.
type vmiDefaulter struct {
	config ConfigSource
}

// Default implements admission.Defaulter.
func (d *vmiDefaulter) Default(_ context.Context, vmi *v1.VirtualMachineInstance) error {
	setDefaults(vmi, d.config.Current())
	controllerutil.AddFinalizer(vmi, v1.VirtualMachineInstanceFinalizer)
	return nil
}

// vmiValidator validates a VMI.
type vmiValidator struct {
	deletable[*v1.VirtualMachineInstance]
	config  ConfigSource
	trusted sets.Set[string]
}

var _ admission.Validator[*v1.VirtualMachineInstance] = (*vmiValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *vmiValidator) ValidateCreate(ctx context.Context, vmi *v1.VirtualMachineInstance) (admission.Warnings, error) {
	config, path := v.config.Current(), field.NewPath("spec")
	errs := validateInstance(path, &vmi.Spec, config)
	if !v.isTrusted(ctx) { // An instance type, a preference and defaults make the spec of a VM's instance larger.
		errs = append(errs, tooLarge(path, maxSpec, nil, &vmi.Spec)...)
	}
	// As in KubeVirt, fields that are not implemented are admitted. The reconciler then does not start the VMI.
	metadata := field.NewPath("metadata")
	warnings := instanceWarnings(path, metadata, &vmi.Spec, vmi.Annotations)
	errs = append(errs, validateMetadata(metadata, &vmi.ObjectMeta, v.isTrusted(ctx))...)
	errs = append(errs, validateAnnotations(metadata, &vmi.ObjectMeta, config)...)
	return warnings, invalidVMI(vmi, errs)
}

// ValidateUpdate implements admission.Validator. Only our components may change the spec, which describes the running
// guest, and of its disks and volumes only what can be plugged.
func (v *vmiValidator) ValidateUpdate(
	ctx context.Context, before, after *v1.VirtualMachineInstance,
) (admission.Warnings, error) {
	if v.isTrusted(ctx) {
		return nil, invalidVMI(after, validateHotplug(before, after, v.config.Current()))
	}
	var errs field.ErrorList
	if !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"),
			"update of VMI object is restricted. Change the VirtualMachine that owns it and restart it."))
	}
	for _, label := range changedReservedLabels(before.Labels, after.Labels) {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "labels").Key(label),
			"modification of the following reserved kubevirt.io/ labels on a VMI object is prohibited"))
	}
	return nil, invalidVMI(after, errs)
}

func (v *vmiValidator) isTrusted(ctx context.Context) bool { return fromTrusted(ctx, v.trusted) }

// fromTrusted reports whether a request is from one of our service accounts.
func fromTrusted(ctx context.Context, trusted sets.Set[string]) bool {
	request, err := admission.RequestFromContext(ctx)
	return err == nil && trusted.Has(request.UserInfo.Username)
}

func invalidVMI(vmi *v1.VirtualMachineInstance, errs field.ErrorList) error {
	return specsupport.NewInvalid(v1.VirtualMachineInstanceGroupVersionKind.GroupKind(), vmi.Name, errs)
}
