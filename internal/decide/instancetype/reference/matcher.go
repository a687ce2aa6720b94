// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reference

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Validate returns the errors of the matchers of a VM. path is the path of the VM's spec, and before is the spec before
// an update, or nil. The messages are KubeVirt's.
func Validate(path *field.Path, before, after *v1.VirtualMachineSpec) field.ErrorList {
	var errs field.ErrorList
	for _, class := range Classes {
		matcher := class.MatcherOf(after)
		if matcher == nil {
			continue
		}
		at := path.Child(class.Field)
		errs = append(errs, class.validate(at, matcher)...)
		if before == nil {
			continue
		}
		if old := class.MatcherOf(before); old != nil && old.Name != matcher.Name &&
			old.RevisionName != "" && old.RevisionName == matcher.RevisionName {
			errs = append(errs, field.Invalid(at.Child("revisionName"), matcher.RevisionName,
				"the Matcher Name has been updated without updating the RevisionName"))
		}
	}
	return errs
}

func (c *Class) validate(at *field.Path, matcher *v1.InstancetypeMatcher) field.ErrorList {
	var errs field.ErrorList
	if matcher.Name == "" && matcher.InferFromVolume == "" {
		errs = append(errs, field.Required(at, "Either Name or InferFromVolume should be provided within the "+c.Matcher))
	}
	if matcher.InferFromVolume != "" {
		for _, set := range []struct{ name, field, value string }{{"Name", "name", matcher.Name},
			{"Kind", "kind", matcher.Kind}} {
			if set.value != "" {
				errs = append(errs, field.Invalid(at.Child(set.field), set.value,
					set.name+" already set, should be cleared before setting inferFromVolume"))
			}
		}
	}
	if policy := matcher.InferFromVolumeFailurePolicy; policy != nil &&
		*policy != v1.RejectInferFromVolumeFailure && *policy != v1.IgnoreInferFromVolumeFailure {
		errs = append(errs, field.Invalid(at.Child("inferFromVolumeFailurePolicy"), *policy,
			fmt.Sprintf("Invalid value '%s' for InferFromVolumeFailurePolicy", *policy)))
	}
	return errs
}

// RevisionOf returns the name of the ControllerRevision that a VM uses: the one that its matcher names, or else the one
// in its status if that contains the object of the matcher. It is empty if the VM has no matcher of the class or refers
// to the object for the first time.
func (c *Class) RevisionOf(vm *v1.VirtualMachine) string {
	matcher, ref := c.MatcherOf(&vm.Spec), c.RefOf(&vm.Status)
	switch {
	case matcher == nil:
		return ""
	case matcher.RevisionName != "":
		return matcher.RevisionName
	case ref == nil || ref.ControllerRevisionRef == nil || !c.refersTo(ref, matcher):
		return ""
	default:
		return ref.ControllerRevisionRef.Name
	}
}

// refersTo reports whether a reference in the status and a matcher refer to the same object. KubeVirt compares only the
// names.
func (c *Class) refersTo(ref *v1.InstancetypeStatusRef, matcher *v1.InstancetypeMatcher) bool {
	if ref.InferFromVolume != matcher.InferFromVolume {
		return false
	}
	if matcher.InferFromVolume != "" {
		return true
	}
	want, err := c.KindOf(matcher.Kind)
	if err != nil {
		return false
	}
	current, err := c.KindOf(ref.Kind)
	return err == nil && want.Name == current.Name && ref.Name == matcher.Name
}

// Ignores reports whether a matcher is ignored if nothing can be inferred from its volume.
func Ignores(matcher *v1.InstancetypeMatcher) bool {
	return matcher.InferFromVolume != "" && matcher.InferFromVolumeFailurePolicy != nil &&
		*matcher.InferFromVolumeFailurePolicy == v1.IgnoreInferFromVolumeFailure
}

// TemplateOf returns the template of a VM to which specs are applied. If the instance type was inferred, and is
// optional, the template's memory is only a fallback, and is omitted. KubeVirt removes it from the VM.
func TemplateOf(spec *v1.VirtualMachineSpec, specs Specs) *v1.VirtualMachineInstanceTemplateSpec {
	if specs.Instancetype == nil || spec.Instancetype == nil || !Ignores(spec.Instancetype) || spec.Template == nil {
		return spec.Template
	}
	template := spec.Template.DeepCopy()
	template.Spec.Domain.Memory = nil
	return template
}

// Hopeless returns an error for the first matcher with a volume from which nothing can ever be inferred, or nil.
// KubeVirt rejects such a VM. A matcher whose result is in the VM's status is not hopeless.
func Hopeless(vm *v1.VirtualMachine) error {
	for _, class := range Classes {
		matcher := class.MatcherOf(&vm.Spec)
		if matcher == nil || matcher.InferFromVolume == "" || vm.Spec.Template == nil || class.RevisionOf(vm) != "" {
			continue
		}
		volumes := vm.Spec.Template.Spec.Volumes
		i := slices.IndexFunc(volumes, func(v v1.Volume) bool { return v.Name == matcher.InferFromVolume })
		if i < 0 {
			return fmt.Errorf("unable to find volume %s to infer defaults", matcher.InferFromVolume)
		}
		if volumes[i].PersistentVolumeClaim == nil && volumes[i].DataVolume == nil && !Ignores(matcher) {
			return fmt.Errorf("unable to infer defaults from volume %s as type is not supported", matcher.InferFromVolume)
		}
	}
	return nil
}

// Waiting returns the keys (see Key) of the objects for which a VM has no ControllerRevision yet. They are the values
// of the index of the VMs that wait for an object.
func Waiting(vm *v1.VirtualMachine) []string {
	var keys []string
	for _, class := range Classes {
		matcher := class.MatcherOf(&vm.Spec)
		if matcher == nil || matcher.Name == "" || class.RevisionOf(vm) != "" {
			continue
		}
		if kind, err := class.KindOf(matcher.Kind); err == nil {
			keys = append(keys, Key(kind, matcher.Name))
		}
	}
	return keys
}

// Key identifies an object in the index of waiting VMs. VMs wait for namespaced objects of their own namespace.
func Key(kind Kind, name string) string { return kind.Resource + "/" + name }
