// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package builder

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
)

// PoolLabel is the label in the selector of a pool of MakePool. Its value is the name of the pool.
const PoolLabel = "pool"

// Pool builds a VirtualMachinePool.
type Pool struct {
	pool poolv1.VirtualMachinePool
}

// MakePool returns a builder that starts with one replica of a VM from MakeVM that always runs.
func MakePool(name string) *Pool {
	b := &Pool{}
	b.pool.Name, b.pool.Namespace = name, Namespace
	b.pool.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{PoolLabel: name}}
	return b.Template(MakeVM("")).Replicas(1)
}

// Obj returns a copy of the object.
func (b *Pool) Obj() *poolv1.VirtualMachinePool { return b.pool.DeepCopy() }

// Namespace sets the namespace.
func (b *Pool) Namespace(ns string) *Pool { b.pool.Namespace = ns; return b }

// Replicas sets the number of replicas.
func (b *Pool) Replicas(n int32) *Pool { b.pool.Spec.Replicas = ptr.To(n); return b }

// Template copies labels, annotations and spec from a VM, and adds the label of the selector to it and to its template.
func (b *Pool) Template(vm *VM) *Pool {
	from := vm.Label(PoolLabel, b.pool.Name).Obj()
	metav1.SetMetaDataLabel(&from.Spec.Template.ObjectMeta, PoolLabel, b.pool.Name)
	b.pool.Spec.VirtualMachineTemplate = &poolv1.VirtualMachineTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: from.Labels, Annotations: from.Annotations},
		Spec:       from.Spec,
	}
	return b
}

// With applies any change.
func (b *Pool) With(change func(*poolv1.VirtualMachinePoolSpec)) *Pool {
	change(&b.pool.Spec)
	return b
}
