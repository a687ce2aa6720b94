// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// The API server converts requests of other versions to the one in the rule.
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=snapshot.kubevirt.io,resources=virtualmachinesnapshots,verbs=create;update,versions=v1beta1,name=virtualmachinesnapshot-validator.snapshot.kubevirt.io,admissionReviewVersions=v1

// snapshotValidator validates the source of a snapshot, with KubeVirt's messages.
type snapshotValidator struct {
	deletable[*v1beta1.VirtualMachineSnapshot]
	config ConfigSource
}

var _ admission.Validator[*v1beta1.VirtualMachineSnapshot] = (*snapshotValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *snapshotValidator) ValidateCreate(
	_ context.Context, vmSnapshot *v1beta1.VirtualMachineSnapshot,
) (admission.Warnings, error) {
	if !v.config.Current().IsEnabled(gateSnapshot) {
		return nil, apierrors.NewBadRequest("snapshot feature gate not enabled")
	}
	path, source := field.NewPath("spec", "source"), vmSnapshot.Spec.Source
	switch {
	case source.APIGroup == nil:
		return nil, invalidSnapshot(vmSnapshot, missingGroup(path))
	case *source.APIGroup != v1.GroupVersion.Group:
		return nil, invalidSnapshot(vmSnapshot, field.Invalid(path.Child("apiGroup"), *source.APIGroup, "invalid apiGroup"))
	case source.Kind != v1.VirtualMachineGroupVersionKind.Kind:
		return nil, invalidSnapshot(vmSnapshot, field.Invalid(path.Child("kind"), source.Kind, "invalid kind"))
	default:
		return nil, nil
	}
}

// ValidateUpdate implements admission.Validator.
func (*snapshotValidator) ValidateUpdate(
	_ context.Context, before, after *v1beta1.VirtualMachineSnapshot,
) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	return nil, invalidSnapshot(after, immutable())
}

func invalidSnapshot(vmSnapshot *v1beta1.VirtualMachineSnapshot, err *field.Error) error {
	return specsupport.NewInvalid(v1beta1.GroupVersion.WithKind("VirtualMachineSnapshot").GroupKind(), vmSnapshot.Name,
		field.ErrorList{err})
}

// missingGroup returns the error for a reference without an API group. Type and text are KubeVirt's.
func missingGroup(path *field.Path) *field.Error {
	return &field.Error{
		Type: field.ErrorTypeNotFound, Field: path.Child("apiGroup").String(), BadValue: field.OmitValueType{},
		Detail: "missing apiGroup",
	}
}

// immutable returns the error for a change of an immutable spec, with KubeVirt's spelling.
func immutable() *field.Error {
	return field.Invalid(field.NewPath("spec"), field.OmitValueType{}, "spec in immutable after creation")
}
