// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// restoreDataVolumes creates the DataVolumes of the VM's templates for the restored claims. It does so before the VM has the templates,
// because the VM reconciler would otherwise create the DataVolumes, and the importer would fill them.
func restoreDataVolumes(s *scope) (bool, error) {
	done, templates := true, s.templates()
	for i := range s.volumes {
		v := &s.volumes[i]
		if v.template < 0 {
			continue
		}
		live := s.DataVolumes[v.dataVolume]
		switch {
		case live == nil:
			s.step.Create = append(s.step.Create, s.newDataVolume(&templates[v.template]))
			done = false
		case !filled(live):
			done = false
		}
	}
	return s.updatingTarget(done)
}

// filled reports whether the importer has accepted the claim of a DataVolume, or will accept it when a Pod uses it.
func filled(dv *cdi.DataVolume) bool {
	switch dv.Status.Phase {
	case cdi.DataVolumeSucceeded, cdi.DataVolumeWaitForFirstConsumer, cdi.DataVolumePendingPopulation:
		return dv.DeletionTimestamp == nil
	default:
		return false
	}
}

func (s *scope) newDataVolume(template *v1.DataVolumeTemplateSpec) *cdi.DataVolume {
	dv := &cdi.DataVolume{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Restore.Namespace, Name: template.Name,
			Labels: maps.Clone(template.Labels), Annotations: maps.Clone(template.Annotations),
		},
		Spec: cdi.DataVolumeSpec{DataVolumeSpec: *template.Spec.DeepCopy()},
	}
	// The source is replaced because the claim is filled already. The importer permits virt-controller to copy from any namespace, and the
	// user could make use of that by removing the annotations from this object.
	dv.Spec.Source, dv.Spec.SourceRef = &cdiv1beta1.DataVolumeSource{Blank: &cdiv1beta1.DataVolumeBlankImage{}}, nil
	// The importer rejects a DataVolume with a source that also has the data source of a driver or a populator.
	if dv.Spec.PVC != nil {
		dv.Spec.PVC.DataSource, dv.Spec.PVC.DataSourceRef = nil, nil
	}
	if dv.Spec.Storage != nil {
		dv.Spec.Storage.DataSource, dv.Spec.Storage.DataSourceRef = nil, nil
	}
	metav1.SetMetaDataAnnotation(&dv.ObjectMeta, snapshot.RestoreNameAnnotation, s.Restore.Name)
	metav1.SetMetaDataAnnotation(&dv.ObjectMeta, prePopulated, "true")
	metav1.SetMetaDataAnnotation(&dv.ObjectMeta, cdi.AllowClaimAdoptionAnnotation, "true")
	// If the VM is new, the VM reconciler makes it the owner.
	if s.Target != nil {
		metav1.SetMetaDataLabel(&dv.ObjectMeta, v1.CreatedByLabel, string(s.Target.UID))
		dv.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s.Target, v1.VirtualMachineGroupVersionKind)}
	}
	return dv
}
