// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/vireo-project/vireo/api/clone/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/decide/clone"
	"github.com/vireo-project/vireo/internal/decide/restore"
	"github.com/vireo-project/vireo/internal/specsupport"
)

// The API server converts requests of other versions to the one in the rules.
// +kubebuilder:webhook:path=/,mutating=true,failurePolicy=fail,sideEffects=None,groups=clone.kubevirt.io,resources=virtualmachineclones,verbs=create,versions=v1beta1,name=virtualmachineclones-mutator.kubevirt.io,admissionReviewVersions=v1
// +kubebuilder:webhook:path=/,mutating=false,failurePolicy=fail,sideEffects=None,groups=clone.kubevirt.io,resources=virtualmachineclones,verbs=create;update,versions=v1beta1,name=vm-clone-validator.kubevirt.io,admissionReviewVersions=v1

// maxShownText is how many characters of a user's text a message contains.
const maxShownText = 256

// cloneMutator sets the name of the target of a new clone, if it has none. Like vmMutator, it constructs the patch
// itself.
type cloneMutator struct {
	decoder admission.Decoder
}

// Handle implements admission.Handler.
func (m *cloneMutator) Handle(_ context.Context, request admission.Request) admission.Response {
	vmClone := &v1beta1.VirtualMachineClone{}
	if err := m.decoder.DecodeRaw(request.Object, vmClone); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	source, target := vmClone.Spec.Source, vmClone.Spec.Target
	if source == nil || target != nil && target.Name != "" {
		return admission.Allowed("") // The schema rejects a clone without a source. KubeVirt crashes.
	}
	name := fmt.Sprintf("clone-%s-%s", source.Name, rand.String(5))
	if target != nil {
		return admission.Patched("", jsonpatch.NewOperation("add", "/spec/target/name", name))
	}
	return admission.Patched("", jsonpatch.NewOperation("add", "/spec/target", corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(v1.GroupVersion.Group), Kind: v1.VirtualMachineGroupVersionKind.Kind, Name: name,
	}))
}

// cloneValidator validates a clone, with KubeVirt's messages. Changes of the spec are admitted, and have an effect
// until the target is created.
type cloneValidator struct {
	deletable[*v1beta1.VirtualMachineClone]
	config ConfigSource
}

var _ admission.Validator[*v1beta1.VirtualMachineClone] = (*cloneValidator)(nil)

// ValidateCreate implements admission.Validator.
func (v *cloneValidator) ValidateCreate(
	_ context.Context, vmClone *v1beta1.VirtualMachineClone,
) (admission.Warnings, error) {
	if !v.config.Current().IsEnabled(gateSnapshot) {
		return nil, apierrors.NewBadRequest("snapshot feature gate is not enabled")
	}
	return validateClone(vmClone)
}

// ValidateUpdate implements admission.Validator. It admits every update that does not change the spec: a rule that a
// later version adds must not block changes of labels.
func (*cloneValidator) ValidateUpdate(
	_ context.Context, before, after *v1beta1.VirtualMachineClone,
) (admission.Warnings, error) {
	if after.DeletionTimestamp != nil || equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		return nil, nil
	}
	return validateClone(after)
}

// validateClone returns KubeVirt's errors in KubeVirt's order, with its types and paths, some of which differ from the
// schema. An error that KubeVirt does not have has the field's own path.
func validateClone(vmClone *v1beta1.VirtualMachineClone) (admission.Warnings, error) {
	path, spec := field.NewPath("spec"), &vmClone.Spec
	errs := slices.Concat(
		validateFilters(path.Child("annotationFilters"), path.Child("annotations"), spec.AnnotationFilters),
		validateFilters(path.Child("labelFilters"), path.Child("labels"), spec.LabelFilters),
		validateFilters(path.Child("template", "annotationFilters"), path.Child("template", "annotations"),
			spec.Template.AnnotationFilters),
		validateFilters(path.Child("template", "labelFilters"), path.Child("template", "labels"), spec.Template.LabelFilters),
		validateCloneKinds(path, spec),
		validateCloneSource(path.Child("Source"), spec.Source),
		validateCloneTarget(path.Child("target"), spec),
		validateAddresses(path.Child("newMacAddresses"), spec.NewMacAddresses),
	)
	warnings, invalid := validateClonePatches(path.Child("patches"), spec.Patches)
	errs = append(errs, invalid...)
	if policy := spec.VolumeNamePolicy; policy != nil &&
		*policy != v1beta1.VolumeNamePolicyRandomizeNames && *policy != v1beta1.VolumeNamePolicyPrefixTargetName {
		errs = append(errs, &field.Error{
			Type: field.ErrorTypeNotSupported, Field: path.Child("volumeNamePolicy").String(), BadValue: *policy,
			Detail: fmt.Sprintf("VolumeNamePolicy %q is not supported", *policy),
		})
	}
	if len(errs) == 0 {
		return warnings, nil
	}
	return nil, specsupport.NewInvalid(v1beta1.VirtualMachineCloneKind.GroupKind(), vmClone.Name, errs)
}

// validateFilters validates a list of filters. named is KubeVirt's path of the list, which is also in the messages.
func validateFilters(path, named *field.Path, filters []string) field.ErrorList {
	if len(filters) > clone.MaxFilters {
		return field.ErrorList{field.TooMany(path, len(filters), clone.MaxFilters)}
	}
	var errs field.ErrorList
	invalid := func(at *field.Path, filter, format string, args ...any) {
		errs = append(errs, field.Invalid(at, printable.Text(filter, maxShownText), fmt.Sprintf(format, args...)))
	}
	const misplaced = "%s filter %s is invalid: cannot contain a %s character (%s); FilterRules: %s"
	for i, filter := range filters {
		switch {
		case filter == "": // KubeVirt crashes.
			invalid(path.Index(i), filter, "an empty filter is not a valid filter")
		case filter == "!":
			invalid(named, filter, "a negation character is not a valid filter")
		case len(filter) > clone.MaxFilter:
			errs = append(errs, field.TooLong(path.Index(i), "", clone.MaxFilter))
		default:
			if strings.Contains(filter[1:], "!") {
				invalid(named, filter, misplaced, named, filter, "negation", "!",
					"NegationChar can be only used at the beginning of the filter")
			}
			if strings.Contains(filter[:len(filter)-1], "*") {
				invalid(named, filter, misplaced, named, filter, "wildcard", "*",
					"WildcardChar can be only at the end of the filter")
			}
		}
	}
	if len(errs) == 0 {
		if err := clone.CheckFilters(filters); err != nil {
			errs = append(errs, field.Forbidden(path, err.Error()))
		}
	}
	return errs
}

// validateCloneKinds validates the kinds of source and target.
func validateCloneKinds(path *field.Path, spec *v1beta1.VirtualMachineCloneSpec) field.ErrorList {
	var errs field.ErrorList
	if source := spec.Source; source != nil && source.Kind != v1.VirtualMachineGroupVersionKind.Kind &&
		source.Kind != "VirtualMachineSnapshot" {
		errs = append(errs, field.Invalid(path.Child("Source", "Kind"), source.Kind, "Source kind is not supported"))
	}
	if target := spec.Target; target != nil && target.Kind != v1.VirtualMachineGroupVersionKind.Kind {
		errs = append(errs, field.Invalid(path.Child("Target", "Kind"), target.Kind, "Target kind is not supported"))
	}
	return errs
}

func validateCloneSource(path *field.Path, source *corev1.TypedLocalObjectReference) field.ErrorList {
	if source == nil { // KubeVirt crashes earlier.
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, "Source cannot be nil")}
	}
	var errs field.ErrorList
	if ptr.Deref(source.APIGroup, "") == "" {
		errs = append(errs, field.Invalid(path.Child("APIGroup"), field.OmitValueType{}, "Source's APIGroup cannot be empty"))
	}
	if source.Kind == "" {
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, "Source's Kind cannot be empty"))
	}
	if source.Name == "" {
		errs = append(errs, field.Invalid(path.Child("Name"), field.OmitValueType{}, "Source's name cannot be empty"))
	}
	return errs
}

func validateCloneTarget(path *field.Path, spec *v1beta1.VirtualMachineCloneSpec) field.ErrorList {
	source, target := spec.Source, spec.Target
	if source == nil || target == nil || source.Name != target.Name ||
		source.Kind != v1.VirtualMachineGroupVersionKind.Kind || target.Kind != v1.VirtualMachineGroupVersionKind.Kind {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child("name"), target.Name,
		"Target name cannot be equal to source name when both are VirtualMachines")}
}

func validateAddresses(path *field.Path, addresses map[string]string) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(addresses)) {
		address := addresses[name]
		if address == "" {
			continue
		}
		if mac, err := net.ParseMAC(address); err != nil || len(mac) > len(reservedMAC) {
			errs = append(errs, field.Invalid(path.Child(name), address,
				fmt.Sprintf("interface %s has malformed MAC address (%s).", name, address)))
		}
	}
	return errs
}

// validateClonePatches rejects patches that are not JSON, as KubeVirt does, and warns of patches that the restore will
// reject.
func validateClonePatches(path *field.Path, patches []string) (admission.Warnings, field.ErrorList) {
	var warnings []string
	var errs field.ErrorList
	for i, patch := range patches {
		shown := printable.Text(patch, maxShownText)
		if !json.Valid([]byte(patch)) {
			errs = append(errs, field.Invalid(path.Index(i), shown, fmt.Sprintf("patch is not valid JSON (%s)", shown)))
			continue
		}
		if len(warnings) > 0 {
			continue // Only the first one is reported, because there may be many.
		}
		if err := restore.CheckPatch(patch); err != nil {
			warnings = append(warnings, fmt.Sprintf("%s: the VM cannot be cloned: %v", path.Index(i), err))
		}
	}
	return warnings, errs
}
