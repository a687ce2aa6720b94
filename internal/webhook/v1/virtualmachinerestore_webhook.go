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
	"github.com/vireo-project/vireo/internal/snapshot/capture"
	"github.com/vireo-project/vireo/internal/snapshot/restore"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// +kubebuilder:webhook:path=/virtualmachinerestores-validate,mutating=false,failurePolicy=fail,sideEffects=None,groups=snapshot.kubevirt.io,resources=virtualmachinerestores,verbs=create;update,versions=v1beta1,name=virtualmachinerestore-validator.snapshot.kubevirt.io,admissionReviewVersions=v1

// restoreValidator validates a restore. Whether the snapshot can be restored to the target is checked by the reconciler: both may
// change. The messages are KubeVirt's.
type restoreValidator struct {
	config ConfigSource
	// reader reads from the cache.
	reader client.Reader
}

var _ admission.Validator[*v1beta1.VirtualMachineRestore] = (*restoreValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *restoreValidator) ValidateCreate(ctx context.Context, of *v1beta1.VirtualMachineRestore) (admission.Warnings, error) {
	if !v.config.Current().IsEnabled(gateSnapshot) {
		return nil, apierrors.NewBadRequest("Snapshot/Restore feature gate not enabled")
	}
	path := field.NewPath("spec")
	errs := validateRestoreTarget(path.Child("target"), of)
	if len(errs) == 0 {
		errs = validateRestoreSpec(path, &of.Spec)
		more, err := v.validateState(ctx, path, of)
		if err != nil {
			return nil, err
		}
		errs = append(errs, more...)
	}
	more, err := v.validateOthers(ctx, path.Child("target"), of)
	if err != nil {
		return nil, err
	}
	return nil, invalidRestore(of, append(errs, more...))
}

// ValidateUpdate implements admission.Validator.
func (v *restoreValidator) ValidateUpdate(_ context.Context, before, after *v1beta1.VirtualMachineRestore) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	return nil, invalidRestore(after, field.ErrorList{immutable()})
}

// ValidateDelete implements admission.Validator. It admits every deletion.
func (v *restoreValidator) ValidateDelete(context.Context, *v1beta1.VirtualMachineRestore) (admission.Warnings, error) {
	return nil, nil
}

func invalidRestore(of *v1beta1.VirtualMachineRestore, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return specsupport.NewInvalid(v1beta1.GroupVersion.WithKind("VirtualMachineRestore").GroupKind(), of.Name, errs)
}

func validateRestoreTarget(path *field.Path, of *v1beta1.VirtualMachineRestore) field.ErrorList {
	switch target := &of.Spec.Target; {
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
		// As in KubeVirt, the path is without the index. The text contains the patch.
		errs = append(errs, field.Invalid(path.Child("patches"), field.OmitValueType{}, err.Error()))
	}
	for i := range spec.VolumeRestoreOverrides {
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
		case v1beta1.VolumeRestorePolicyInPlace, v1beta1.VolumeRestorePolicyRandomizeNames, v1beta1.VolumeRestorePolicyPrefixTargetName:
		default:
			errs = append(errs, field.Invalid(path.Child("volumeRestorePolicy"), *policy, fmt.Sprintf("volume restore policy %q doesn't exist", *policy)))
		}
	}
	if policy := spec.VolumeOwnershipPolicy; policy != nil {
		switch *policy {
		case v1beta1.VolumeOwnershipPolicyVm, v1beta1.VolumeOwnershipPolicyNone:
		default:
			errs = append(errs, field.Invalid(path.Child("volumeOwnershipPolicy"), *policy, fmt.Sprintf("volume ownership policy %q doesn't exist", *policy)))
		}
	}
	return errs
}

// validateState refuses to restore the state of TPM and EFI to another VM. A snapshot that does not exist yet is admitted.
func (v *restoreValidator) validateState(ctx context.Context, path *field.Path, of *v1beta1.VirtualMachineRestore) (field.ErrorList, error) {
	from := &v1beta1.VirtualMachineSnapshot{}
	err := v.reader.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: of.Spec.VirtualMachineSnapshotName}, from)
	if err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	content := &v1beta1.VirtualMachineSnapshotContent{}
	if err := v.reader.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: capture.ContentName(from)}, content); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	vm := content.Spec.Source.VirtualMachine
	if vm == nil || vm.Spec.Template == nil || !vm.Spec.Template.Spec.HasPersistentState() {
		return nil, nil
	}
	if other, err := v.isOther(ctx, of, from, vm.Name); err != nil || !other {
		return nil, err
	}
	return field.ErrorList{field.Invalid(path, field.OmitValueType{},
		"Restore to a different VM is not supported when snapshotted VM has backend storage (persistent TPM or EFI)")}, nil
}

// isOther reports whether the target is another VM than the one of a snapshot: as in KubeVirt, one of the same name with another UID is.
// A VM that was deleted may be created again under its name, which KubeVirt refuses.
func (v *restoreValidator) isOther(
	ctx context.Context, of *v1beta1.VirtualMachineRestore, from *v1beta1.VirtualMachineSnapshot, source string,
) (bool, error) {
	target, key := &v1.VirtualMachine{}, client.ObjectKey{Namespace: of.Namespace, Name: of.Spec.Target.Name}
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

// validateOthers refuses a restore while another one to the same target is underway. KubeVirt refuses it forever if that one has failed.
func (v *restoreValidator) validateOthers(ctx context.Context, path *field.Path, of *v1beta1.VirtualMachineRestore) (field.ErrorList, error) {
	list := &v1beta1.VirtualMachineRestoreList{}
	if err := v.reader.List(ctx, list, client.InNamespace(of.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list VirtualMachineRestores of namespace %s: %w", of.Namespace, err)
	}
	var errs field.ErrorList
	for i := range list.Items {
		other := &list.Items[i]
		if equality.Semantic.DeepEqual(other.Spec.Target, of.Spec.Target) && !restore.Finished(other.Status) {
			errs = append(errs, field.Invalid(path, of.Spec.Target.Name, fmt.Sprintf("VirtualMachineRestore %q in progress", other.Name)))
		}
	}
	return errs, nil
}
