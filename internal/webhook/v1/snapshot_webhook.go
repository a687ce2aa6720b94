// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/restore"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
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

// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=snapshot.kubevirt.io,resources=virtualmachinerestores,verbs=create;update,versions=v1beta1,name=virtualmachinerestore-validator.snapshot.kubevirt.io,admissionReviewVersions=v1

// restoreValidator validates a restore. The reconciler checks whether the snapshot can be restored to the target,
// because both may change. The messages are KubeVirt's.
type restoreValidator struct {
	deletable[*v1beta1.VirtualMachineRestore]
	config ConfigSource
	// reader reads from the cache.
	reader client.Reader
}

var _ admission.Validator[*v1beta1.VirtualMachineRestore] = (*restoreValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *restoreValidator) ValidateCreate(
	ctx context.Context, vmRestore *v1beta1.VirtualMachineRestore,
) (admission.Warnings, error) {
	if !v.config.Current().IsEnabled(gateSnapshot) {
		return nil, apierrors.NewBadRequest("Snapshot/Restore feature gate not enabled")
	}
	path := field.NewPath("spec")
	errs := validateRestoreTarget(path.Child("target"), vmRestore)
	if len(errs) == 0 {
		errs = validateRestoreSpec(path, &vmRestore.Spec)
		more, err := v.validateState(ctx, path, vmRestore)
		if err != nil {
			return nil, err
		}
		errs = append(errs, more...)
	}
	more, err := v.validateOthers(ctx, path.Child("target"), vmRestore)
	if err != nil {
		return nil, err
	}
	return nil, invalidRestore(vmRestore, append(errs, more...))
}

// ValidateUpdate implements admission.Validator.
func (v *restoreValidator) ValidateUpdate(
	_ context.Context, before, after *v1beta1.VirtualMachineRestore,
) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	return nil, invalidRestore(after, field.ErrorList{immutable()})
}

func invalidRestore(vmRestore *v1beta1.VirtualMachineRestore, errs field.ErrorList) error {
	return specsupport.NewInvalid(v1beta1.GroupVersion.WithKind("VirtualMachineRestore").GroupKind(), vmRestore.Name, errs)
}

func validateRestoreTarget(path *field.Path, vmRestore *v1beta1.VirtualMachineRestore) field.ErrorList {
	switch target := &vmRestore.Spec.Target; {
	case target.APIGroup == nil:
		return field.ErrorList{missingGroup(path)}
	case *target.APIGroup != v1.GroupVersion.Group:
		return field.ErrorList{field.Invalid(path.Child("apiGroup"), *target.APIGroup, "invalid apiGroup")}
	case target.Kind != v1.VirtualMachineGroupVersionKind.Kind:
		return field.ErrorList{field.Invalid(path.Child("kind"), target.Kind, "invalid kind")}
	}
	return nil
}

func validateRestoreSpec(path *field.Path, spec *v1beta1.VirtualMachineRestoreSpec) field.ErrorList {
	var errs field.ErrorList
	for _, err := range restore.CheckPatches(spec.Patches) {
		// As in KubeVirt, the path does not contain the index. The text contains the patch.
		errs = append(errs, field.Invalid(path.Child("patches"), field.OmitValueType{}, err.Error()))
	}
	for i := range spec.VolumeRestoreOverrides {
		if len(errs) > specsupport.MaxErrors {
			break // A user determines how many there are.
		}
		override, at := &spec.VolumeRestoreOverrides[i], path.Child("volumeRestoreOverrides").Index(i)
		if override.VolumeName == "" {
			errs = append(errs, field.Required(at.Child("volumeName"), "must provide a volume name"))
		}
		if override.RestoreName == "" && override.Annotations == nil && override.Labels == nil {
			errs = append(errs, field.Required(at, "must provide at least one overriden field")) //nolint:misspell // KubeVirt's spelling
		}
	}
	if policy := spec.VolumeRestorePolicy; policy != nil {
		switch *policy {
		case v1beta1.VolumeRestorePolicyInPlace, v1beta1.VolumeRestorePolicyRandomizeNames,
			v1beta1.VolumeRestorePolicyPrefixTargetName:
		default:
			errs = append(errs, field.Invalid(path.Child("volumeRestorePolicy"), *policy,
				fmt.Sprintf("volume restore policy %q doesn't exist", *policy)))
		}
	}
	if policy := spec.VolumeOwnershipPolicy; policy != nil {
		switch *policy {
		case v1beta1.VolumeOwnershipPolicyVm, v1beta1.VolumeOwnershipPolicyNone:
		default:
			errs = append(errs, field.Invalid(path.Child("volumeOwnershipPolicy"), *policy,
				fmt.Sprintf("volume ownership policy %q doesn't exist", *policy)))
		}
	}
	return errs
}

// validateState rejects restoring the state of TPM and EFI to another VM. A snapshot that does not exist yet is
// admitted.
func (v *restoreValidator) validateState(
	ctx context.Context, path *field.Path, vmRestore *v1beta1.VirtualMachineRestore,
) (field.ErrorList, error) {
	from := &v1beta1.VirtualMachineSnapshot{}
	err := v.reader.Get(ctx,
		client.ObjectKey{Namespace: vmRestore.Namespace, Name: vmRestore.Spec.VirtualMachineSnapshotName}, from)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	content := &v1beta1.VirtualMachineSnapshotContent{}
	if err := v.reader.Get(ctx, client.ObjectKey{Namespace: vmRestore.Namespace, Name: capture.ContentName(from)},
		content); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	vm := content.Spec.Source.VirtualMachine
	if vm == nil || vm.Spec.Template == nil || !vm.Spec.Template.Spec.HasPersistentState() {
		return nil, nil
	}
	if other, err := v.isOther(ctx, vmRestore, from, vm.Name); err != nil || !other {
		return nil, err
	}
	return field.ErrorList{field.Invalid(path, field.OmitValueType{},
		"Restore to a different VM is not supported when snapshotted VM has backend storage (persistent TPM or EFI)")}, nil
}

// isOther reports whether the target is a VM other than that of a snapshot. As in KubeVirt, this includes a VM of the
// same name with another UID. A VM that was deleted may be created again under its name, which KubeVirt rejects.
func (v *restoreValidator) isOther(
	ctx context.Context, vmRestore *v1beta1.VirtualMachineRestore, from *v1beta1.VirtualMachineSnapshot, source string,
) (bool, error) {
	target, key := &v1.VirtualMachine{}, client.ObjectKey{Namespace: vmRestore.Namespace, Name: vmRestore.Spec.Target.Name}
	err := v.reader.Get(ctx, key, target)
	switch {
	case apierrors.IsNotFound(err):
		return key.Name != source, nil
	case err != nil:
		return false, fmt.Errorf("get VirtualMachine %s: %w", key, err)
	case from.Status == nil, from.Status.SourceUID == nil:
		return key.Name != source, nil
	default:
		return target.UID != *from.Status.SourceUID, nil
	}
}

// validateOthers rejects a restore while another restore of the same target is in progress. KubeVirt also rejects it if
// the other one has failed.
func (v *restoreValidator) validateOthers(
	ctx context.Context, path *field.Path, vmRestore *v1beta1.VirtualMachineRestore,
) (field.ErrorList, error) {
	list := &v1beta1.VirtualMachineRestoreList{}
	if err := v.reader.List(ctx, list, client.InNamespace(vmRestore.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VirtualMachineRestores of namespace %s: %w", vmRestore.Namespace, err)
	}
	var errs field.ErrorList
	for i := range list.Items {
		other := &list.Items[i]
		if equality.Semantic.DeepEqual(other.Spec.Target, vmRestore.Spec.Target) && !restore.Finished(other.Status) {
			errs = append(errs, field.Invalid(path, vmRestore.Spec.Target.Name,
				fmt.Sprintf("VirtualMachineRestore %q in progress", other.Name)))
		}
	}
	return errs, nil
}
