// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package builder

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// VM builds a VirtualMachine.
type VM struct{ vm v1.VirtualMachine }

// MakeVM returns a builder that starts with a template from MakeVMI and run strategy Always.
func MakeVM(name string) *VM {
	b := &VM{}
	b.vm.Name, b.vm.Namespace = name, Namespace
	b.Template(MakeVMI(name))
	return b.Strategy(v1.RunStrategyAlways)
}

// Obj returns a copy of the object.
func (b *VM) Obj() *v1.VirtualMachine { return b.vm.DeepCopy() }

// Namespace sets the namespace.
func (b *VM) Namespace(ns string) *VM { b.vm.Namespace = ns; return b }

// UID sets the UID, for tests without an API server.
func (b *VM) UID(uid string) *VM { b.vm.UID = types.UID(uid); return b }

// Strategy sets the run strategy.
func (b *VM) Strategy(s v1.VirtualMachineRunStrategy) *VM {
	b.vm.Spec.RunStrategy = &s
	return b
}

// Template copies labels, annotations and spec from a VMI.
func (b *VM) Template(vmi *VMI) *VM {
	from := vmi.Obj()
	b.vm.Spec.Template = &v1.VirtualMachineInstanceTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: from.Labels, Annotations: from.Annotations},
		Spec:       from.Spec,
	}
	return b
}

// Finalizers adds finalizers.
func (b *VM) Finalizers(f ...string) *VM {
	b.vm.Finalizers = append(b.vm.Finalizers, f...)
	return b
}

// Label adds a label.
func (b *VM) Label(key, value string) *VM {
	metav1.SetMetaDataLabel(&b.vm.ObjectMeta, key, value)
	return b
}

// With applies any change.
func (b *VM) With(change func(*v1.VirtualMachine)) *VM { change(&b.vm); return b }

// PVC builds a PersistentVolumeClaim.
type PVC struct{ pvc corev1.PersistentVolumeClaim }

// MakePVC returns a builder that starts with a filesystem claim of 1Gi for one node.
func MakePVC(name string) *PVC {
	b := &PVC{}
	b.pvc.Name, b.pvc.Namespace = name, Namespace
	b.pvc.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	setResource(&b.pvc.Spec.Resources.Requests, corev1.ResourceStorage, "1Gi")
	return b
}

// Obj returns a copy of the object.
func (b *PVC) Obj() *corev1.PersistentVolumeClaim { return b.pvc.DeepCopy() }

// Namespace sets the namespace.
func (b *PVC) Namespace(ns string) *PVC { b.pvc.Namespace = ns; return b }

// Block sets the volume mode Block.
func (b *PVC) Block() *PVC {
	mode := corev1.PersistentVolumeBlock
	b.pvc.Spec.VolumeMode = &mode
	return b
}

// Bound binds the claim to a volume of a size.
func (b *PVC) Bound(capacity string) *PVC {
	b.pvc.Status.Phase = corev1.ClaimBound
	b.pvc.Status.AccessModes = b.pvc.Spec.AccessModes
	setResource(&b.pvc.Status.Capacity, corev1.ResourceStorage, capacity)
	return b
}
