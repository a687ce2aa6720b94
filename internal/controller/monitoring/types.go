// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/instancetype/reference"
)

// vendorLabel is the label of an instance type or preference with its vendor. As in KubeVirt, metrics contain only the names of objects of
// known vendors, which are the same in all clusters, and not the names of users' own objects.
const (
	vendorLabel = "instancetype.kubevirt.io/vendor"
	otherType   = "<other>"
)

var vendors = map[string]bool{"kubevirt.io": true, "redhat.com": true}

// typeKey identifies an instance type or preference. The namespace of a cluster-wide one is empty.
type typeKey struct{ kind, namespace, name string }

// typeIndex contains the instance types and preferences of the cluster.
type typeIndex map[typeKey]client.Object

// add adds the objects of lists.
func (t typeIndex) add(lists []client.ObjectList) {
	for _, list := range lists {
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			object, ok := item.(client.Object)
			if !ok {
				return nil
			}
			t[typeKey{kindOf(object), object.GetNamespace(), object.GetName()}] = object
			return nil
		})
	}
}

// kindOf returns the kind of an instance type or preference. Objects of a typed list have no kind of their own.
func kindOf(object client.Object) string {
	preference, namespaced := reference.PreferenceSpec(object) != nil, object.GetNamespace() != ""
	class := reference.Instancetypes
	if preference {
		class = reference.Preferences
	}
	if namespaced {
		return class.Namespaced.Name
	}
	return class.Cluster.Name
}

// find returns the object that a matcher of a VM refers to, or nil.
func (t typeIndex) find(class *reference.Class, vm *v1.VirtualMachine) client.Object {
	matcher := class.MatcherOf(&vm.Spec)
	if matcher == nil {
		return nil
	}
	kind, err := class.KindOf(matcher.Kind)
	if err != nil {
		return nil
	}
	key := typeKey{kind: kind.Name, name: matcher.Name}
	if kind.Namespaced {
		key.namespace = vm.Namespace
	}
	return t[key]
}

// ofVM returns the name of a VM's instance type or preference for a label.
func (t typeIndex) ofVM(class *reference.Class, vm *v1.VirtualMachine) string {
	if class.MatcherOf(&vm.Spec) == nil {
		return ""
	}
	return publicName(t.find(class, vm))
}

// ofVMI returns the name of what was applied to a VMI, for a label.
func (t typeIndex) ofVMI(class *reference.Class, vmi *v1.VirtualMachineInstance) string {
	if name, ok := vmi.Annotations[class.NamespacedAnnotation]; ok {
		return publicName(t[typeKey{class.Namespaced.Name, vmi.Namespace, name}])
	}
	if name, ok := vmi.Annotations[class.ClusterAnnotation]; ok {
		return publicName(t[typeKey{kind: class.Cluster.Name, name: name}])
	}
	return ""
}

func publicName(object client.Object) string {
	if object == nil || !vendors[object.GetLabels()[vendorLabel]] {
		return otherType
	}
	return object.GetName()
}
