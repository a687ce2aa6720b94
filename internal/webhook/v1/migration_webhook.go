// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/specsupport"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// +kubebuilder:webhook:path=/,mutating=true,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=create,versions=v1,name=migrations-mutator.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=create,versions=v1,name=migration-create-validator.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachineinstancemigrations,verbs=update,versions=v1,name=migration-update-validator.kubevirt.io,admissionReviewVersions=v1

// migrationDefaulter adds the finalizer to a new migration, and the label that selects the migrations of a VMI.
type migrationDefaulter struct{}

// Default implements admission.Defaulter.
func (migrationDefaulter) Default(_ context.Context, m *v1.VirtualMachineInstanceMigration) error {
	controllerutil.AddFinalizer(m, v1.VirtualMachineInstanceMigrationFinalizer)
	metav1.SetMetaDataLabel(&m.ObjectMeta, v1.MigrationSelectorLabel, podspec.LabelValue(m.Spec.VMIName))
	return nil
}

// migrationValidator validates a migration.
type migrationValidator struct {
	deletable[*v1.VirtualMachineInstanceMigration]
	config ConfigSource
	// apiReader reads from the API server, because a cache may lack a migration that was just created.
	apiReader client.Reader
	trusted   sets.Set[string]
}

var _ admission.Validator[*v1.VirtualMachineInstanceMigration] = (*migrationValidator)(nil)

// ValidateCreate implements admission.Validator. The messages are KubeVirt's.
func (v *migrationValidator) ValidateCreate(
	ctx context.Context, m *v1.VirtualMachineInstanceMigration,
) (admission.Warnings, error) {
	path := field.NewPath("spec")
	if errs := v.fieldErrors(ctx, path, &m.Spec); len(errs) > 0 {
		return nil, specsupport.NewInvalid(v1.VirtualMachineInstanceMigrationGroupVersionKind.GroupKind(), m.Name, errs)
	}
	warnings := specsupport.Warnings(specsupport.UnimplementedInMigration(path, &m.Spec))
	vmi := &v1.VirtualMachineInstance{}
	err := v.apiReader.Get(ctx, client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName}, vmi)
	switch {
	case apierrors.IsNotFound(err):
		return warnings, apierrors.NewBadRequest(fmt.Sprintf("the VMI \"%s/%s\" does not exist", m.Namespace, m.Spec.VMIName))
	case err != nil:
		return warnings, apierrors.NewInternalError(fmt.Errorf("cannot read the VMI: %w", err))
	case vmi.IsFinal():
		return warnings, apierrors.NewBadRequest("Cannot migrate VMI in finalized state.")
	}
	condition := vmistatus.Migratability(&vmi.Status)
	if condition != nil && condition.Status == corev1.ConditionFalse {
		return warnings, apierrors.NewBadRequest(
			fmt.Sprintf("Cannot migrate VMI, Reason: %s, Message: %s", condition.Reason, condition.Message))
	}
	return warnings, v.checkNoOther(ctx, m)
}

func (v *migrationValidator) fieldErrors(
	ctx context.Context, path *field.Path, spec *v1.VirtualMachineInstanceMigrationSpec,
) field.ErrorList {
	var errs field.ErrorList
	if spec.VMIName == "" {
		errs = append(errs, field.Required(path.Child("vmiName"), "vmiName is missing"))
	}
	if spec.Priority != nil && !fromTrusted(ctx, v.trusted) {
		errs = append(errs, field.Forbidden(path.Child("priority"), "only the system's own controllers may set it: omit it"))
	}
	if v.config.Current().IsEnabled(gateDecentralized) {
		return errs
	}
	for name, set := range map[string]bool{"sendTo": spec.SendTo != nil, "receive": spec.Receive != nil} {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name),
				gateDecentralized+" feature gate is not enabled in kubevirt-config"))
		}
	}
	return errs
}

// checkNoOther rejects a migration of a VMI that has an unfinished migration.
func (v *migrationValidator) checkNoOther(ctx context.Context, m *v1.VirtualMachineInstanceMigration) error {
	var active types.UID
	err := kit.EachMigration(ctx, v.apiReader, client.ObjectKey{Namespace: m.Namespace, Name: m.Spec.VMIName},
		func(other *v1.VirtualMachineInstanceMigration) { active = other.UID })
	switch {
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("cannot list other migrations: %w", err))
	case active != "":
		return apierrors.NewBadRequest(
			fmt.Sprintf("in-flight migration detected. Active migration job (%s) is currently already in progress for VMI %s.",
				active, m.Spec.VMIName))
	default:
		return nil
	}
}

// ValidateUpdate implements admission.Validator.
func (v *migrationValidator) ValidateUpdate(
	_ context.Context, before, after *v1.VirtualMachineInstanceMigration,
) (admission.Warnings, error) {
	var errs field.ErrorList
	if !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		errs = append(errs, field.Forbidden(field.NewPath("spec"), "update of Migration object's spec is restricted"))
	}
	valueBefore, inBefore := before.Labels[v1.MigrationSelectorLabel]
	valueAfter, inAfter := after.Labels[v1.MigrationSelectorLabel]
	label := field.NewPath("metadata", "labels").Key(v1.MigrationSelectorLabel)
	switch {
	case after.IsFinal() || !inBefore || valueBefore == valueAfter && inAfter:
	case len(after.Labels) == 0:
		errs = append(errs, field.Forbidden(label, "selector label can't be removed from an in-flight migration"))
	default:
		errs = append(errs, field.Forbidden(label, "selector label can't be modified on an in-flight migration"))
	}
	return nil, specsupport.NewInvalid(v1.VirtualMachineInstanceMigrationGroupVersionKind.GroupKind(), after.Name, errs)
}

// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=migrations.kubevirt.io,resources=migrationpolicies,verbs=create;update,versions=v1alpha1,name=migration-policy-validator.kubevirt.io,admissionReviewVersions=v1

// migrationPolicyValidator validates the fields that depend on the cluster's configuration. The CRD's schema validates
// the rest.
type migrationPolicyValidator struct {
	deletable[*v1alpha1.MigrationPolicy]
	config ConfigSource
}

var _ admission.Validator[*v1alpha1.MigrationPolicy] = (*migrationPolicyValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *migrationPolicyValidator) ValidateCreate(
	_ context.Context, policy *v1alpha1.MigrationPolicy,
) (admission.Warnings, error) {
	return nil, v.validate(&v1alpha1.MigrationPolicy{}, policy)
}

// ValidateUpdate implements admission.Validator.
func (v *migrationPolicyValidator) ValidateUpdate(
	_ context.Context, before, after *v1alpha1.MigrationPolicy,
) (admission.Warnings, error) {
	if after.DeletionTimestamp != nil {
		return nil, nil
	}
	return nil, v.validate(before, after)
}

func (v *migrationPolicyValidator) validate(before, after *v1alpha1.MigrationPolicy) error {
	enabled := v.config.Current().IsEnabled(clusterconfig.GateStallDetection)
	errs := checkDowntime(field.NewPath("spec", "maxDowntimeMs"), before.Spec.MaxDowntimeMs, after.Spec.MaxDowntimeMs,
		enabled)
	if current, wanted := stallDetector(before), stallDetector(after); wanted != nil &&
		!equality.Semantic.DeepEqual(current, wanted) && !enabled {
		errs = append(errs, field.Forbidden(field.NewPath("spec", "experimental", "stallDetector"),
			"experimental.stallDetector cannot be modified without enabling the "+clusterconfig.GateStallDetection+
				" feature gate"))
	}
	return specsupport.NewInvalid(v1alpha1.MigrationPolicyKind.GroupKind(), after.Name, errs)
}

// stallDetector returns the stall detector of a policy, or nil.
func stallDetector(policy *v1alpha1.MigrationPolicy) *v1.StallDetectorOptions {
	if policy.Spec.ExperimentalMigrationOptions == nil {
		return nil
	}
	return policy.Spec.ExperimentalMigrationOptions.StallDetector
}

// checkDowntime refuses a change of maxDowntimeMs without its feature gate. The message is KubeVirt's.
func checkDowntime(p *field.Path, before, after *uint64, enabled bool) field.ErrorList {
	if after == nil || ptr.Equal(before, after) || enabled {
		return nil
	}
	return field.ErrorList{field.Invalid(p, *after,
		"maxDowntimeMs cannot be modified without enabling the "+clusterconfig.GateStallDetection+" feature gate")}
}
