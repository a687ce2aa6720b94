// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package reference implements the references of VMs to instance types and preferences: the matchers in their spec, and
// the ControllerRevisions with the objects as they were when a VM first referred to them.
package reference

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/instancetype"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// Kind is a kind of instance types or preferences.
type Kind struct {
	// Name is the kind, as in a manifest.
	Name string
	// Resource is the plural name of the resource.
	Resource string
	// Namespaced reports whether its objects are in the namespace of the VM.
	Namespaced bool
	// New returns an empty object.
	New func() client.Object
}

// GroupResource returns the resource, for errors of the API.
func (k Kind) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: instancetype.GroupName, Resource: k.Resource}
}

// Class is one of the two classes of objects to which a VM can refer: instance types and preferences.
type Class struct {
	// Field is the name of the matcher's field in the spec of a VM.
	Field string
	// Matcher is the type of the matcher, for messages.
	Matcher string
	// ReasonNotFound is the reason of a VM's failure if the object cannot be found. KubeVirt's.
	ReasonNotFound string
	// Cluster and Namespaced are the kinds of the class. Cluster is the default.
	Cluster, Namespaced Kind
	// ClusterAnnotation and NamespacedAnnotation of a VMI contain the name of the object that was applied to it.
	ClusterAnnotation, NamespacedAnnotation string
	// DefaultLabel and DefaultKindLabel of a volume contain the name and the kind of the object that suits its content.
	DefaultLabel, DefaultKindLabel string

	matcher func(*v1.VirtualMachineSpec) *v1.InstancetypeMatcher
	ref     func(*v1.VirtualMachineStatus) **v1.InstancetypeStatusRef
}

// Instancetypes are the class of spec.instancetype.
var Instancetypes = &Class{
	Field: "instancetype", Matcher: "InstancetypeMatcher", ReasonNotFound: "FailedFindInstancetype",
	Cluster: Kind{
		Name: "VirtualMachineClusterInstancetype", Resource: instancetype.ClusterPluralResourceName,
		New: func() client.Object { return &v1beta1.VirtualMachineClusterInstancetype{} },
	},
	Namespaced: Kind{
		Name: "VirtualMachineInstancetype", Resource: instancetype.PluralResourceName, Namespaced: true,
		New: func() client.Object { return &v1beta1.VirtualMachineInstancetype{} },
	},
	ClusterAnnotation: v1.ClusterInstancetypeAnnotation, NamespacedAnnotation: v1.InstancetypeAnnotation,
	DefaultLabel: instancetype.DefaultInstancetypeLabel, DefaultKindLabel: instancetype.DefaultInstancetypeKindLabel,
	matcher: func(spec *v1.VirtualMachineSpec) *v1.InstancetypeMatcher { return spec.Instancetype },
	ref:     func(status *v1.VirtualMachineStatus) **v1.InstancetypeStatusRef { return &status.InstancetypeRef },
}

// Preferences are the class of spec.preference.
var Preferences = &Class{
	Field: "preference", Matcher: "PreferenceMatcher", ReasonNotFound: "FailedFindPreference",
	Cluster: Kind{
		Name: "VirtualMachineClusterPreference", Resource: instancetype.ClusterPluralPreferenceResourceName,
		New: func() client.Object { return &v1beta1.VirtualMachineClusterPreference{} },
	},
	Namespaced: Kind{
		Name: "VirtualMachinePreference", Resource: instancetype.PluralPreferenceResourceName, Namespaced: true,
		New: func() client.Object { return &v1beta1.VirtualMachinePreference{} },
	},
	ClusterAnnotation: v1.ClusterPreferenceAnnotation, NamespacedAnnotation: v1.PreferenceAnnotation,
	DefaultLabel: instancetype.DefaultPreferenceLabel, DefaultKindLabel: instancetype.DefaultPreferenceKindLabel,
	matcher: func(spec *v1.VirtualMachineSpec) *v1.InstancetypeMatcher {
		return (*v1.InstancetypeMatcher)(spec.Preference)
	},
	ref: func(status *v1.VirtualMachineStatus) **v1.InstancetypeStatusRef { return &status.PreferenceRef },
}

// Classes are both classes, in the order in which they are applied to a VM.
var Classes = []*Class{Instancetypes, Preferences}

// MatcherOf returns the matcher in the spec of a VM, or nil. Both matchers have the same fields.
func (c *Class) MatcherOf(spec *v1.VirtualMachineSpec) *v1.InstancetypeMatcher {
	return c.matcher(spec)
}

// RefOf returns the reference in the status of a VM, or nil.
func (c *Class) RefOf(status *v1.VirtualMachineStatus) *v1.InstancetypeStatusRef {
	return *c.ref(status)
}

// SetRef sets the reference in the status of a VM.
func (c *Class) SetRef(status *v1.VirtualMachineStatus, ref *v1.InstancetypeStatusRef) {
	*c.ref(status) = ref
}

// KindOf returns the kind that a matcher names, in upper or lower case, singular or plural. Empty means the
// cluster-wide kind.
func (c *Class) KindOf(name string) (Kind, error) {
	lower := strings.ToLower(name)
	for _, kind := range []Kind{c.Cluster, c.Namespaced} {
		if lower == strings.ToLower(kind.Name) || lower == kind.Resource {
			return kind, nil
		}
	}
	if name == "" {
		return c.Cluster, nil
	}
	return Kind{}, fmt.Errorf("got unexpected kind in %s: %s", c.Matcher, name)
}

// ClassOf returns the class of an object, or nil if it is neither an instance type nor a preference.
func ClassOf(object client.Object) *Class {
	switch {
	case InstancetypeSpec(object) != nil:
		return Instancetypes
	case PreferenceSpec(object) != nil:
		return Preferences
	default:
		return nil
	}
}

// KindOf returns the kind of an object.
func KindOf(object client.Object) (Kind, error) {
	switch object.(type) {
	case *v1beta1.VirtualMachineInstancetype:
		return Instancetypes.Namespaced, nil
	case *v1beta1.VirtualMachineClusterInstancetype:
		return Instancetypes.Cluster, nil
	case *v1beta1.VirtualMachinePreference:
		return Preferences.Namespaced, nil
	case *v1beta1.VirtualMachineClusterPreference:
		return Preferences.Cluster, nil
	default:
		return Kind{}, fmt.Errorf("%T is neither an instance type nor a preference", object)
	}
}

// InstancetypeSpec returns the spec of an instance type of either kind, or nil for another object.
func InstancetypeSpec(object client.Object) *v1beta1.VirtualMachineInstancetypeSpec {
	switch o := object.(type) {
	case *v1beta1.VirtualMachineInstancetype:
		return &o.Spec
	case *v1beta1.VirtualMachineClusterInstancetype:
		return &o.Spec
	default:
		return nil
	}
}

// PreferenceSpec returns the spec of a preference of either kind, or nil for another object.
func PreferenceSpec(object client.Object) *v1beta1.VirtualMachinePreferenceSpec {
	switch o := object.(type) {
	case *v1beta1.VirtualMachinePreference:
		return &o.Spec
	case *v1beta1.VirtualMachineClusterPreference:
		return &o.Spec
	default:
		return nil
	}
}
