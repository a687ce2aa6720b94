// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=kubevirts,verbs=create,versions=v1,name=kubevirt-create-validator.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=kubevirts,verbs=update,versions=v1,name=kubevirt-update-validator.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=kubevirts,verbs=delete,versions=v1,name=kubevirt-validator.kubevirt.io,admissionReviewVersions=v1

// kubeVirtValidator validates the KubeVirt object.
type kubeVirtValidator struct {
	// reader reads from the API server, because a cache may lack objects that were just created.
	reader client.Reader
}

var _ admission.Validator[*v1.KubeVirt] = (*kubeVirtValidator)(nil)

// ValidateCreate implements admission.Validator. A cluster has at most one KubeVirt object.
func (v *kubeVirtValidator) ValidateCreate(ctx context.Context, kv *v1.KubeVirt) (admission.Warnings, error) {
	existing := &v1.KubeVirtList{}
	if err := v.reader.List(ctx, existing, client.Limit(1)); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("cannot list other KubeVirt objects: %w", err))
	}
	if len(existing.Items) > 0 {
		other := &existing.Items[0]
		//nolint:staticcheck // ST1005: KubeVirt's message, which clients match
		return nil, forbiddenKubeVirt(kv, fmt.Errorf("Kubevirt is already created: %s/%s. Edit it, or delete it first",
			other.Namespace, other.Name))
	}
	return validateWithConfig(kv)
}

// ValidateUpdate implements admission.Validator.
func (v *kubeVirtValidator) ValidateUpdate(_ context.Context, before, after *v1.KubeVirt) (admission.Warnings, error) {
	if after.DeletionTimestamp != nil || equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	return validateWithConfig(after, checkMigrations(&before.Spec.Configuration, &after.Spec.Configuration)...)
}

// checkMigrations returns the errors of changes to the configuration of migrations.
func checkMigrations(before, after *v1.KubeVirtConfiguration) field.ErrorList {
	downtime := func(c *v1.KubeVirtConfiguration) *uint64 {
		if c.MigrationConfiguration == nil {
			return nil
		}
		return c.MigrationConfiguration.MaxDowntimeMs
	}
	var gates clusterconfig.FeatureGates
	if d := after.DeveloperConfiguration; d != nil {
		gates = clusterconfig.NewFeatureGates(d.FeatureGates, d.DisabledFeatureGates)
	}
	return checkDowntime(field.NewPath("spec", "configuration", "migrations", "maxDowntimeMs"), downtime(before),
		downtime(after),
		gates.IsEnabled(clusterconfig.GateStallDetection))
}

// ValidateDelete implements admission.Validator. It denies the deletion while there are workloads, if the uninstall
// strategy requires that. The reconciler does the same for workloads that are created after the deletion.
func (v *kubeVirtValidator) ValidateDelete(ctx context.Context, kv *v1.KubeVirt) (admission.Warnings, error) {
	if kv.Spec.UninstallStrategy != v1.KubeVirtUninstallStrategyBlockUninstallIfWorkloadsExist ||
		kv.Status.Phase == v1.KubeVirtPhaseDeleted {
		return nil, nil
	}
	vmis, vms := &v1.VirtualMachineInstanceList{}, &v1.VirtualMachineList{}
	sets, pools := &v1.VirtualMachineInstanceReplicaSetList{}, &poolv1.VirtualMachinePoolList{}
	for _, list := range []client.ObjectList{vmis, vms, sets, pools} {
		if err := v.reader.List(ctx, list, client.Limit(1)); err != nil {
			return nil, apierrors.NewInternalError(fmt.Errorf("cannot list workloads: %w", err))
		}
	}
	var present string
	switch {
	case len(vmis.Items) > 0:
		present = fmt.Sprintf("Virtual Machine Instances present, such as %s", client.ObjectKeyFromObject(&vmis.Items[0]))
	case len(vms.Items) > 0:
		present = fmt.Sprintf("Virtual Machines present, such as %s", client.ObjectKeyFromObject(&vms.Items[0]))
	case len(sets.Items) > 0:
		present = fmt.Sprintf("Virtual Machine Instance Replica Sets present, such as %s",
			client.ObjectKeyFromObject(&sets.Items[0]))
	case len(pools.Items) > 0:
		present = fmt.Sprintf("Virtual Machine Pools present, such as %s", client.ObjectKeyFromObject(&pools.Items[0]))
	default:
		return nil, nil
	}
	return nil, forbiddenKubeVirt(kv,
		fmt.Errorf("rejecting the uninstall request, since there are still %s. Either delete "+
			"all KubeVirt related workloads or change the uninstall strategy before uninstalling KubeVirt", present))
}

func forbiddenKubeVirt(kv *v1.KubeVirt, err error) error {
	return apierrors.NewForbidden(v1.GroupVersion.WithResource("kubevirts").GroupResource(), kv.Name, err)
}

// validateWithConfig validates a KubeVirt object and parses its configuration as the components do. found are errors
// that the caller has already found.
func validateWithConfig(kv *v1.KubeVirt, found ...*field.Error) (admission.Warnings, error) {
	path := field.NewPath("spec")
	warnings := kubeVirtWarnings(path, &kv.Spec)
	errs := append(validateKubeVirt(path, &kv.Spec), found...)
	if _, err := clusterconfig.FromKubeVirt(kv); err != nil {
		errs = append(errs, fieldErrors(err)...)
	}
	return warnings, specsupport.NewInvalid(v1.KubeVirtGroupVersionKind.GroupKind(), kv.Name, errs)
}

// fieldErrors returns the errors of an aggregate as field errors.
func fieldErrors(err error) field.ErrorList {
	all := []error{err}
	var aggregate utilerrors.Aggregate
	if errors.As(err, &aggregate) {
		all = aggregate.Errors()
	}
	list := make(field.ErrorList, 0, len(all))
	for _, cause := range all {
		var fieldError *field.Error
		if !errors.As(cause, &fieldError) {
			fieldError = field.Invalid(field.NewPath("spec"), nil, cause.Error())
		}
		list = append(list, fieldError)
	}
	return list
}
