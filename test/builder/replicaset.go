// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package builder

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// SetLabel is the label in the selector of a set of MakeReplicaSet. Its value is the name of the set.
const SetLabel = "set"

// ReplicaSet builds a VirtualMachineInstanceReplicaSet.
type ReplicaSet struct {
	set v1.VirtualMachineInstanceReplicaSet
}

// MakeReplicaSet returns a builder that starts with one replica of a template from MakeVMI.
func MakeReplicaSet(name string) *ReplicaSet {
	b := &ReplicaSet{}
	b.set.Name, b.set.Namespace = name, Namespace
	b.set.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{SetLabel: name}}
	return b.Template(MakeVMI("")).Replicas(1)
}

// Obj returns a copy of the object.
func (b *ReplicaSet) Obj() *v1.VirtualMachineInstanceReplicaSet { return b.set.DeepCopy() }

// Namespace sets the namespace.
func (b *ReplicaSet) Namespace(ns string) *ReplicaSet { b.set.Namespace = ns; return b }

// UID sets the UID, for tests without an API server.
func (b *ReplicaSet) UID(uid string) *ReplicaSet { b.set.UID = types.UID(uid); return b }

// Replicas sets the number of replicas.
func (b *ReplicaSet) Replicas(n int32) *ReplicaSet { b.set.Spec.Replicas = ptr.To(n); return b }

// Paused pauses the set.
func (b *ReplicaSet) Paused() *ReplicaSet { b.set.Spec.Paused = true; return b }

// Template copies labels, annotations and spec from a VMI, and adds the label of the selector.
func (b *ReplicaSet) Template(vmi *VMI) *ReplicaSet {
	from := vmi.Label(SetLabel, b.set.Name).Obj()
	b.set.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: from.Labels, Annotations: from.Annotations},
		Spec:       from.Spec,
	}
	return b
}

// With applies any change.
func (b *ReplicaSet) With(change func(*v1.VirtualMachineInstanceReplicaSet)) *ReplicaSet {
	change(&b.set)
	return b
}
