// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// poolKind is the kind in the owner references of a pool's VMs and revisions.
var poolKind = poolv1.GroupVersion.WithKind(poolapi.VirtualMachinePoolKind)

// rendered is the part of a VM that the pool's template determines, without the label with the revision.
type rendered struct {
	labels, annotations map[string]string
	spec                v1.VirtualMachineSpec
}

// render returns the VM with this ordinal. The ordinal is appended to the names of DataVolumes, and to those of
// ConfigMaps and Secrets if the spec requests it.
func render(spec *poolv1.VirtualMachinePoolSpec, ordinal int) rendered {
	template := spec.VirtualMachineTemplate.DeepCopy()
	out := rendered{labels: template.ObjectMeta.Labels, annotations: template.ObjectMeta.Annotations, spec: template.Spec}
	suffix := "-" + strconv.Itoa(ordinal)
	own := map[string]bool{}
	for i := range out.spec.DataVolumeTemplates {
		own[out.spec.DataVolumeTemplates[i].Name] = true
		out.spec.DataVolumeTemplates[i].Name += suffix
	}
	if out.spec.Template == nil {
		return out
	}
	if out.spec.Template.ObjectMeta.Labels != nil {
		delete(out.spec.Template.ObjectMeta.Labels, v1.VirtualMachinePoolRevisionName)
	}
	var configMaps, secrets bool
	if names := spec.NameGeneration; names != nil {
		configMaps = ptr.Deref(names.AppendIndexToConfigMapRefs, false)
		secrets = ptr.Deref(names.AppendIndexToSecretRefs, false)
	}
	for i := range out.spec.Template.Spec.Volumes {
		appendOrdinal(&out.spec.Template.Spec.Volumes[i], suffix, own, configMaps, secrets)
	}
	return out
}

// appendOrdinal appends the suffix to the names in a volume. own are the names of the VM's DataVolume templates.
func appendOrdinal(volume *v1.Volume, suffix string, own map[string]bool, configMaps, secrets bool) {
	if dv := volume.DataVolume; dv != nil && own[dv.Name] {
		dv.Name += suffix
	}
	if claim := volume.PersistentVolumeClaim; claim != nil && own[claim.ClaimName] {
		claim.ClaimName += suffix
	}
	if configMaps && volume.ConfigMap != nil {
		volume.ConfigMap.Name += suffix
	}
	if !secrets {
		return
	}
	if volume.Secret != nil {
		volume.Secret.SecretName += suffix
	}
	var references []*corev1.LocalObjectReference
	if ci := volume.CloudInitNoCloud; ci != nil {
		references = append(references, ci.UserDataSecretRef, ci.NetworkDataSecretRef)
	}
	if ci := volume.CloudInitConfigDrive; ci != nil {
		references = append(references, ci.UserDataSecretRef, ci.NetworkDataSecretRef)
	}
	for _, reference := range references {
		if reference != nil {
			reference.Name += suffix
		}
	}
}

// newVM returns the new VM with this ordinal.
func newVM(pool *poolv1.VirtualMachinePool, ordinal int, revision string) *v1.VirtualMachine {
	from := render(&pool.Spec, ordinal)
	vm := &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pool.Namespace, Name: vmName(pool.Name, ordinal),
			Labels: maps.Clone(from.labels), Annotations: from.annotations,
			Finalizers:      []string{poolapi.VirtualMachinePoolControllerFinalizer},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, poolKind)},
		},
		Spec: from.spec,
	}
	setRevision(vm, revision)
	return vm
}

// setRevision labels a VM, its template, and thereby its next VMI with a revision.
func setRevision(vm *v1.VirtualMachine, revision string) {
	metav1.SetMetaDataLabel(&vm.ObjectMeta, v1.VirtualMachinePoolRevisionName, revision)
	if vm.Spec.Template != nil {
		metav1.SetMetaDataLabel(&vm.Spec.Template.ObjectMeta, v1.VirtualMachinePoolRevisionName, revision)
	}
}

// same reports whether two specs render the same VM.
func (r rendered) same(other rendered) bool {
	return equality.Semantic.DeepEqual(r.labels, other.labels) &&
		equality.Semantic.DeepEqual(r.annotations, other.annotations) &&
		equality.Semantic.DeepEqual(r.spec, other.spec)
}

// sameInstance reports whether VMs of two specs have the same VMI.
func (r rendered) sameInstance(other rendered) bool {
	return equality.Semantic.DeepEqual(r.spec.Template, other.spec.Template) &&
		equality.Semantic.DeepEqual(r.spec.Instancetype, other.spec.Instancetype) &&
		equality.Semantic.DeepEqual(r.spec.Preference, other.spec.Preference)
}

// sameDisks reports whether VMs of two specs have the same disks.
func (r rendered) sameDisks(other rendered) bool {
	return equality.Semantic.DeepEqual(r.spec.DataVolumeTemplates, other.spec.DataVolumeTemplates)
}
