// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/machinetype"
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

// reservedLabels are labels that the controllers and the agents read, and that only these may write. The list is
// KubeVirt's.
var reservedLabels = []string{
	v1.CreatedByLabel,
	v1.MigrationJobLabel,
	v1.NodeNameLabel,
	v1.MigrationTargetNodeNameLabel,
	v1.NodeSchedulable,
	"kubevirt.io/install-strategy",
}

// validateMetadata rejects reserved labels in the metadata of a VMI, or of a VM's template, if an untrusted user writes
// them.
func validateMetadata(path *field.Path, meta *metav1.ObjectMeta, trusted bool) field.ErrorList {
	var errs field.ErrorList
	if !trusted {
		for _, label := range reservedLabels {
			if _, set := meta.Labels[label]; set {
				errs = append(errs, field.Forbidden(path.Child("labels").Key(label),
					"creation of the following reserved kubevirt.io/ labels on a VMI object is prohibited"))
			}
		}
	}
	return errs
}

// validateAnnotations refuses annotations whose feature gate is not enabled. With the gate enabled they are admitted,
// as in KubeVirt, and package specsupport warns if they are not implemented.
func validateAnnotations(path *field.Path, meta *metav1.ObjectMeta, config clusterconfig.Config) field.ErrorList {
	var errs field.ErrorList
	for _, a := range []struct{ annotation, gate string }{
		{v1.IgnitionAnnotation, gateIgnition},
		{specsupport.HookSidecarAnnotation, gateSidecar},
	} {
		if meta.Annotations[a.annotation] != "" && !config.IsEnabled(a.gate) {
			errs = append(errs, field.Forbidden(path.Child("annotations").Key(a.annotation),
				a.gate+" feature gate is not enabled in kubevirt-config"))
		}
	}
	return errs
}

// changedReservedLabels returns the reserved labels that differ between two versions of a VMI.
func changedReservedLabels(before, after map[string]string) []string {
	return slices.DeleteFunc(slices.Clone(reservedLabels), func(label string) bool {
		b, inBefore := before[label]
		a, inAfter := after[label]
		return inBefore == inAfter && a == b
	})
}

// instanceWarnings returns warnings about settings in a VMI's spec and annotations that have no effect or another one,
// because they are not implemented, no guest can have them, or only another build of QEMU has them.
func instanceWarnings(
	spec, metadata *field.Path, vmi *v1.VirtualMachineInstanceSpec, annotations map[string]string,
) []string {
	warnings := specsupport.Warnings(specsupport.UnimplementedInVMI(spec, vmi))
	warnings = append(warnings, specsupport.Warnings(specsupport.UnimplementedInAnnotations(metadata, annotations))...)
	if machine := vmi.Domain.Machine; machine != nil {
		if replaced := machinetype.Replaced(machine.Type); replaced != "" {
			warnings = append(warnings, spec.Child("domain", "machine", "type").String()+": "+replaced)
		}
	}
	for _, err := range specsupport.LimitErrors(specsupport.ImpossibleInVMI(spec, vmi)) {
		warnings = append(warnings, err.Field+" keeps the VM from starting: "+err.ErrorBody())
	}
	return warnings
}

// Admit sets the defaults of a new VMI and returns its errors, as the webhooks do. Only tests without an API server
// call it.
func Admit(vmi *v1.VirtualMachineInstance, config clusterconfig.Config) field.ErrorList {
	setDefaults(vmi, config)
	return validateInstance(field.NewPath("spec"), &vmi.Spec, config)
}
