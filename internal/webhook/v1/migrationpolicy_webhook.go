// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/api/migrations/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

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
