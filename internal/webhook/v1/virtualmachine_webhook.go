// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/firmware"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// +kubebuilder:webhook:path=/,mutating=true,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachines,verbs=create;update,versions=v1,name=virtualmachines-mutator.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=kubevirt.io,resources=virtualmachines,verbs=create;update,versions=v1,name=virtualmachine-validator.kubevirt.io,admissionReviewVersions=v1

// vmMutator adds the finalizer and the record of the guest's identity to a new VM, keeps that record when a client
// replaces the VM without it, and changes nothing else. It constructs the patch itself, because a patch that is
// computed from the decoded object would also add the zero values of Go's types to the user's spec.
type vmMutator struct {
	decoder admission.Decoder
}

// Handle implements admission.Handler.
func (m *vmMutator) Handle(_ context.Context, request admission.Request) admission.Response {
	vm := &metav1.PartialObjectMetadata{}
	if err := m.decoder.DecodeRaw(request.Object, vm); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	var patches []jsonpatch.Operation
	record := firmware.NewRecord(request.Namespace, vm.Name)
	if request.Operation == admissionv1.Update {
		before := &metav1.PartialObjectMetadata{}
		if err := m.decoder.DecodeRaw(request.OldObject, before); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		var recorded bool
		if record, recorded = firmware.RecordOf(request.Namespace, vm.Name, before.Annotations); !recorded {
			return admission.Allowed("")
		}
	} else if !slices.Contains(vm.Finalizers, v1.VirtualMachineControllerFinalizer) {
		patches = append(patches, addFinalizer(vm))
	}
	// A name that the API server generates is not known yet: virt-controller adds the record.
	if _, recorded := firmware.RecordOf(request.Namespace, vm.Name, vm.Annotations); !recorded && vm.Name != "" {
		patches = append(patches, setRecord(vm, record))
	}
	return admission.Patched("", patches...)
}

func addFinalizer(vm *metav1.PartialObjectMetadata) jsonpatch.Operation {
	const finalizer = v1.VirtualMachineControllerFinalizer
	if len(vm.Finalizers) == 0 {
		return jsonpatch.NewOperation("add", "/metadata/finalizers", []string{finalizer})
	}
	return jsonpatch.NewOperation("add", "/metadata/finalizers/-", finalizer)
}

func setRecord(vm *metav1.PartialObjectMetadata, record firmware.Record) jsonpatch.Operation {
	if len(vm.Annotations) == 0 {
		return jsonpatch.NewOperation("add", "/metadata/annotations",
			map[string]string{firmware.RecordAnnotation: record.Text()})
	}
	return jsonpatch.NewOperation("add", "/metadata/annotations/"+strings.ReplaceAll(firmware.RecordAnnotation, "/", "~1"),
		record.Text())
}

// vmValidator validates a VM by the rules for its VMI.
type vmValidator struct {
	deletable[*v1.VirtualMachine]
	config  ConfigSource
	trusted sets.Set[string]
	finder  reference.Finder
}

var _ admission.Validator[*v1.VirtualMachine] = (*vmValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *vmValidator) ValidateCreate(ctx context.Context, vm *v1.VirtualMachine) (admission.Warnings, error) {
	return v.validate(ctx, nil, vm)
}

// validate validates a VM. before is the stored VM, or nil for a new one.
func (v *vmValidator) validate(ctx context.Context, before, vm *v1.VirtualMachine) (admission.Warnings, error) {
	path, config := field.NewPath("spec"), v.config.Current()
	errs := validateMatchers(path, before, vm)
	trusted := fromTrusted(ctx, v.trusted)
	if !trusted { // The VM of a pool or a restore is limited by the template or the content.
		errs = append(errs, tooLarge(path, maxSpec, specOf(before), &vm.Spec)...)
	}
	if err := reference.Hopeless(vm); err != nil && len(errs) == 0 {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	spec, complete, conflicts := v.expand(ctx, vm, config)
	errs = append(errs, conflicts...)
	errs = append(errs, validateVM(path, spec, config, trusted && keepsReservedLabels(before, vm))...)
	if !trusted {
		errs = append(errs, validateRestoring(path, before, vm)...)
	}
	errs = append(errs, foreignDataVolumes(path, vm, before)...)
	warnings := vmWarnings(path, spec)
	if len(errs) == 0 {
		if complete {
			warnings = append(warnings,
				errorsOfTemplate(path.Child("template"), vm.Namespace, vm.Name, spec.Template, config)...)
		}
		return warnings, nil
	}
	return warnings, specsupport.NewInvalid(v1.VirtualMachineGroupVersionKind.GroupKind(), vm.Name, errs)
}

func specOf(vm *v1.VirtualMachine) *v1.VirtualMachineSpec {
	if vm == nil {
		return nil
	}
	return &vm.Spec
}

// keepsReservedLabels reports whether the reserved labels of a VM's template are unchanged. This also applies to our
// components, which add none: a template that virt-controller writes may come from a user's
// VirtualMachineSnapshotContent or the patches of a VirtualMachineRestore.
func keepsReservedLabels(before, after *v1.VirtualMachine) bool {
	if before == nil || before.Spec.Template == nil || after.Spec.Template == nil {
		return false
	}
	return len(changedReservedLabels(before.Spec.Template.ObjectMeta.Labels, after.Spec.Template.ObjectMeta.Labels)) == 0
}

// validateRestoring rejects a new run strategy while the VM is being restored.
func validateRestoring(path *field.Path, before, after *v1.VirtualMachine) field.ErrorList {
	if before == nil || after.Status.RestoreInProgress == nil {
		return nil
	}
	// A VM without a valid strategy is rejected by another rule.
	strategyBefore, _ := before.RunStrategy()
	strategyAfter, _ := after.RunStrategy()
	if strategyBefore == strategyAfter {
		return nil
	}
	return field.ErrorList{field.Forbidden(path,
		fmt.Sprintf("Cannot update VM runStrategy until restore %q completes", *after.Status.RestoreInProgress))}
}

// ValidateUpdate implements admission.Validator. It admits every update of a VM whose spec does not change, or that is
// being deleted, unless a snapshot is being taken of it: a rule that a later version adds must not block changes of
// finalizers or labels.
func (v *vmValidator) ValidateUpdate(
	ctx context.Context, before, after *v1.VirtualMachine,
) (admission.Warnings, error) {
	if equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	if errs := validateSnapshotLock(field.NewPath("spec"), before, after); len(errs) > 0 {
		return nil, specsupport.NewInvalid(v1.VirtualMachineGroupVersionKind.GroupKind(), after.Name, errs)
	}
	if after.DeletionTimestamp != nil {
		return nil, nil
	}
	return v.validate(ctx, before, after)
}

// validateSnapshotLock rejects changes of fields that a snapshot includes while it is being taken, with KubeVirt's
// messages.
func validateSnapshotLock(path *field.Path, before, after *v1.VirtualMachine) field.ErrorList {
	locked := after.Status.SnapshotInProgress
	if locked == nil {
		return nil
	}
	var errs field.ErrorList
	if !equality.Semantic.DeepEqual(volumesOf(before), volumesOf(after)) {
		errs = append(errs, field.Forbidden(path,
			fmt.Sprintf("Cannot update vm disks or volumes until snapshot %q completes", *locked)))
	}
	strategyBefore, err := before.RunStrategy()
	if strategyAfter, newErr := after.RunStrategy(); err == nil && newErr == nil && strategyBefore != strategyAfter {
		errs = append(errs, field.Forbidden(path,
			fmt.Sprintf("Cannot update vm running state until snapshot %q completes", *locked)))
	}
	return errs
}

func volumesOf(vm *v1.VirtualMachine) []v1.Volume {
	if vm.Spec.Template == nil {
		return nil
	}
	return vm.Spec.Template.Spec.Volumes
}

func validateVM(
	path *field.Path, spec *v1.VirtualMachineSpec, config clusterconfig.Config, trusted bool,
) field.ErrorList {
	var errs field.ErrorList
	switch {
	case spec.Running != nil && spec.RunStrategy != nil:
		errs = append(errs, field.Forbidden(path.Child("running"),
			"Running and RunStrategy are mutually exclusive. Note that Running is deprecated, please use RunStrategy instead"))
	case spec.Running == nil && spec.RunStrategy == nil:
		errs = append(errs, field.Required(path.Child("runStrategy"), "One of Running or RunStrategy must be specified"))
	}
	if strategy := spec.RunStrategy; strategy != nil && *strategy == v1.RunStrategyWaitAsReceiver &&
		!config.IsEnabled(gateDecentralized) {
		errs = append(errs, field.Invalid(path.Child("runStrategy"), *strategy, fmt.Sprintf(
			"Invalid RunStrategy (%s), %s feature gate is not enabled in kubevirt resource", *strategy, gateDecentralized)))
	}
	if spec.Template == nil {
		return append(errs, field.Required(path.Child("template"), "missing virtual machine template."))
	}
	template := path.Child("template")
	errs = append(errs, validateSpec(template.Child("spec"), &spec.Template.Spec, config)...)
	errs = append(errs, validateMetadata(template.Child("metadata"), &spec.Template.ObjectMeta, trusted)...)
	errs = append(errs, validateAnnotations(template.Child("metadata"), &spec.Template.ObjectMeta, config)...)
	growing := &check{path: template.Child("spec"), spec: &spec.Template.Spec, config: config}
	checkMaxGuest(growing)
	errs = append(errs, growing.errs...)
	return append(errs, validateDataVolumeTemplates(path, spec)...)
}

// vmWarnings returns the warnings about a VM.
func vmWarnings(path *field.Path, spec *v1.VirtualMachineSpec) []string {
	var list []string
	if spec.Running != nil {
		// KubeVirt's message, which clients match.
		list = append(list, "spec.running is deprecated, please use spec.runStrategy instead.")
	}
	list = append(list, specsupport.Warnings(specsupport.UnimplementedInVM(path, spec))...)
	if template := spec.Template; template != nil {
		at := path.Child("template")
		list = append(list, instanceWarnings(at.Child("spec"), at.Child("metadata"), &template.Spec,
			template.ObjectMeta.Annotations)...)
	}
	return list
}

// errorsOfTemplate returns warnings about the errors that a VMI from a valid template has only because of its defaults.
// A read-only disk without a bus, for example, becomes a SATA disk, which cannot be read-only. These are only warnings,
// because the defaults may have changed when the VMI is created.
func errorsOfTemplate(
	path *field.Path, namespace, name string, template *v1.VirtualMachineInstanceTemplateSpec, config clusterconfig.Config,
) []string {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: *template.ObjectMeta.DeepCopy(), Spec: *template.Spec.DeepCopy()}
	vmi.Namespace, vmi.Name = namespace, name
	setDefaults(vmi, config)
	found := validateInstance(path.Child("spec"), &vmi.Spec, config)
	found = append(found, validateAnnotations(path.Child("metadata"), &vmi.ObjectMeta, config)...)
	warnings := make([]string, 0, min(len(found), specsupport.MaxErrors))
	for _, err := range specsupport.LimitErrors(found) {
		warnings = append(warnings, fmt.Sprintf("%s keeps the VM from starting: %s", err.Field, err.Detail))
	}
	return warnings
}

// validateMatchers returns the errors of the matchers of a VM. before is the stored VM, or nil for a new one.
func validateMatchers(path *field.Path, before, after *v1.VirtualMachine) field.ErrorList {
	if before == nil {
		return reference.Validate(path, nil, &after.Spec)
	}
	return reference.Validate(path, &before.Spec, &after.Spec)
}

// expand returns the spec of a VM with instance type and preference applied to its template, and whether a VMI would be
// created from this spec. Objects that do not exist yet are not applied, because a VM may be created before the objects
// to which it refers. The VM is not changed.
func (v *vmValidator) expand(
	ctx context.Context, vm *v1.VirtualMachine, config clusterconfig.Config,
) (spec *v1.VirtualMachineSpec, complete bool, errs field.ErrorList) {
	if vm.Spec.Template == nil || vm.Spec.Instancetype == nil && vm.Spec.Preference == nil {
		return &vm.Spec, vm.Spec.Template != nil, nil
	}
	specs, err := v.finder.Find(ctx, vm)
	if err != nil {
		return &vm.Spec, false, nil // The VM's reconciler reports the error.
	}
	if err := instancetype.CheckTopology(specs.Instancetype, specs.Preference); err != nil {
		return &vm.Spec, false, field.ErrorList{err}
	}
	template, conflicts := instancetype.Expand(reference.TemplateOf(&vm.Spec, specs), specs.Instancetype, specs.Preference)
	if len(conflicts) > 0 {
		return &vm.Spec, false, conflicts.Admission()
	}
	expanded := vm.Spec
	expanded.Template = template
	if specs.Preference != nil {
		vmi := &v1.VirtualMachineInstance{Spec: *template.Spec.DeepCopy()}
		setDefaults(vmi, config)
		var unmet *instancetype.RequirementError
		if errors.As(instancetype.CheckRequirements(&vmi.Spec, specs.Instancetype, specs.Preference), &unmet) {
			errs = append(errs, unmet.Admission()...)
		}
	}
	return &expanded, true, errs
}
