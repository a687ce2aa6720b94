// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
)

// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=backup.kubevirt.io,resources=virtualmachinebackups,verbs=create,versions=v1alpha1,name=virtualmachinebackup-validator.backup.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=backup.kubevirt.io,resources=virtualmachinebackuptrackers,verbs=create,versions=v1alpha1,name=virtualmachinebackuptracker-validator.backup.kubevirt.io,admissionReviewVersions=v1

// backupValidator checks the feature gate of backups and their trackers. The schemas have the rules for the specs.
// KubeVirt also refuses a second backup of a source, which waits here.
type backupValidator[T runtime.Object] struct {
	deletable[T]
	config ConfigSource
}

var (
	_ admission.Validator[*v1alpha1.VirtualMachineBackup]        = (*backupValidator[*v1alpha1.VirtualMachineBackup])(nil)
	_ admission.Validator[*v1alpha1.VirtualMachineBackupTracker] = (*backupValidator[*v1alpha1.VirtualMachineBackupTracker])(nil)
)

// ValidateCreate implements admission.Validator.
func (v *backupValidator[T]) ValidateCreate(context.Context, T) (admission.Warnings, error) {
	if !v.config.Current().IsEnabled(clusterconfig.GateIncrementalBackup) {
		return nil, apierrors.NewBadRequest("IncrementalBackup feature gate not enabled")
	}
	return nil, nil
}

// ValidateUpdate implements admission.Validator. The schemas refuse changes of the specs.
func (*backupValidator[T]) ValidateUpdate(_ context.Context, _, _ T) (admission.Warnings, error) {
	return nil, nil
}
