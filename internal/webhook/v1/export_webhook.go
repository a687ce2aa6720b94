// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	backupapi "github.com/vireo-project/vireo/api/backup"
	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	exportv1 "github.com/vireo-project/vireo/api/export/v1"
	"github.com/vireo-project/vireo/api/snapshot"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// The API server converts requests of other versions to the one in the rule.
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=export.kubevirt.io,resources=virtualmachineexports,verbs=create;update,versions=v1,name=virtualmachineexport-validator.export.kubevirt.io,admissionReviewVersions=v1

// exportValidator validates the source of an export, with KubeVirt's messages.
type exportValidator struct {
	deletable[*exportv1.VirtualMachineExport]
}

var _ admission.Validator[*exportv1.VirtualMachineExport] = exportValidator{}

// templateGroup is the group of templates, which an add-on of KubeVirt installs.
const templateGroup = "template.kubevirt.io"

// exportSource is a kind of source.
type exportSource struct{ group, noName, otherGroup string }

// exportSources are the kinds of sources that KubeVirt accepts. Those that are not exported wait, with a condition that
// says so.
var exportSources = map[string]exportSource{
	"PersistentVolumeClaim":  {"", "PVC name must not be empty", "PVC API group must be missing or blank"},
	"VirtualMachine":         {v1.GroupVersion.Group, "Virtual Machine name must not be empty", "VM API group must be " + v1.GroupVersion.Group},
	"VirtualMachineSnapshot": {snapshot.GroupName, "VMSnapshot name must not be empty", "VMSnapshot API group must be " + snapshot.GroupName},
	"VirtualMachineBackup":   {backupapi.GroupName, "VMBackup name must not be empty", "VMBackup API group must be " + backupapi.GroupName},
	"VirtualMachineTemplate": {templateGroup, "VirtualMachineTemplate name must not be empty", "VirtualMachineTemplate API group must be " + templateGroup},
}

// ValidateCreate implements admission.Validator.
func (exportValidator) ValidateCreate(
	_ context.Context, vmExport *exportv1.VirtualMachineExport,
) (admission.Warnings, error) {
	path, source := field.NewPath("spec", "source"), vmExport.Spec.Source
	known, found := exportSources[source.Kind]
	if !found {
		return nil, invalidExport(vmExport, field.Invalid(path.Child("kind"), source.Kind, "invalid kind"))
	}
	var errs field.ErrorList
	if source.Name == "" {
		errs = append(errs, field.Invalid(path.Child("name"), source.Name, known.noName))
	}
	if group := ptr.Deref(source.APIGroup, ""); group != known.group {
		errs = append(errs, field.Invalid(path.Child("apiGroup"), group, known.otherGroup))
	}
	if len(errs) > 0 {
		return nil, invalidExport(vmExport, errs...)
	}
	return nil, nil
}

// ValidateUpdate implements admission.Validator.
func (exportValidator) ValidateUpdate(
	_ context.Context, before, after *exportv1.VirtualMachineExport,
) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	// KubeVirt's text
	return nil, invalidExport(after, field.Forbidden(field.NewPath("spec"), "spec in immutable after creation"))
}

func invalidExport(vmExport *exportv1.VirtualMachineExport, errs ...*field.Error) error {
	return specsupport.NewInvalid(exportv1.GroupVersion.WithKind("VirtualMachineExport").GroupKind(), vmExport.Name, errs)
}

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
