// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// +kubebuilder:webhook:path=/virtualmachinebackups-validate,mutating=false,failurePolicy=fail,sideEffects=None,groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=create,versions=v1alpha1,name=virtualmachinebackup-validator.backup.kubevirt.io,admissionReviewVersions=v1

// backupValidator checks the feature gate. The schema has the rules for the spec. KubeVirt also refuses a second backup of a source, which
// waits here.
type backupValidator struct{ config ConfigSource }

var _ admission.Validator[*v1alpha1.VirtualMachineBackup] = (*backupValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *backupValidator) ValidateCreate(context.Context, *v1alpha1.VirtualMachineBackup) (admission.Warnings, error) {
	if !v.config.Current().IsEnabled(clusterconfig.GateIncrementalBackup) {
		return nil, apierrors.NewBadRequest("IncrementalBackup feature gate not enabled")
	}
	return nil, nil
}

// ValidateUpdate implements admission.Validator. The schema refuses changes of the spec.
func (*backupValidator) ValidateUpdate(_ context.Context, _, _ *v1alpha1.VirtualMachineBackup) (admission.Warnings, error) {
	return nil, nil
}

// ValidateDelete implements admission.Validator. It admits every deletion.
func (*backupValidator) ValidateDelete(context.Context, *v1alpha1.VirtualMachineBackup) (admission.Warnings, error) {
	return nil, nil
}
