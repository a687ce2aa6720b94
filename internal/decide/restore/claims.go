// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package restore

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/cdi"
	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/snapshot"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
)

// Annotations of the importer. Source: containerized-data-importer pkg/controller/common.
const (
	// populatedFor of a claim names the DataVolume that may adopt it as a filled claim.
	populatedFor = "cdi.kubevirt.io/storage.populatedFor"
	// prePopulated of a DataVolume keeps the importer from creating a claim for it.
	prePopulated = "cdi.kubevirt.io/storage.prePopulated"
)

// describesVolume contains the prefixes of annotations that describe the claim's volume, and not its content.
var describesVolume = []string{
	"pv.kubernetes.io", "volume.beta.kubernetes.io", "volume.kubernetes.io", "cdi.kubevirt.io", "k8s.io/CloneRequest",
	"k8s.io/CloneOf",
}

// restoreClaims creates the restored claims, after it has deleted the claims that they replace.
func restoreClaims(s *scope) (bool, error) {
	done := true
	for i := range s.volumes {
		ready, err := s.restoreClaim(&s.volumes[i])
		if err != nil {
			return false, err
		}
		done = done && ready
	}
	return s.creatingClaims(done)
}

func (s *scope) restoreClaim(v *volume) (bool, error) {
	live := s.Claims[v.claim]
	if live != nil && s.isFromRestore(live.Annotations) && live.DeletionTimestamp == nil {
		return s.bound(live)
	}
	// While the claim is missing, the importer would create a new one for the DataVolume.
	if dv := s.DataVolumes[v.claim]; dv != nil && s.replaces(v.VolumeBackup, v.claim) && !s.isKept(dv) {
		s.step.Update = append(s.step.Update, s.kept(dv))
		return false, nil
	}
	switch {
	case live == nil:
		s.step.Create = append(s.step.Create, s.newClaim(v))
	case live.DeletionTimestamp == nil:
		s.step.Delete = append(s.step.Delete, live)
	}
	return false, nil
}

// isKept reports whether the DataVolume has the annotation of this restore that keeps the importer from creating a
// claim.
func (s *scope) isKept(dv *cdi.DataVolume) bool {
	return dv.Annotations[snapshot.RestoreNameAnnotation] == s.Restore.Name && dv.Annotations[prePopulated] != ""
}

func (s *scope) kept(dv *cdi.DataVolume) *cdi.DataVolume {
	out := dv.DeepCopy()
	metav1.SetMetaDataAnnotation(&out.ObjectMeta, snapshot.RestoreNameAnnotation, s.Restore.Name)
	metav1.SetMetaDataAnnotation(&out.ObjectMeta, prePopulated, dv.Name)
	return out
}

// bound reports whether a claim is bound, or will be bound when a Pod uses it.
func (s *scope) bound(claim *corev1.PersistentVolumeClaim) (bool, error) {
	switch claim.Status.Phase {
	case corev1.ClaimBound:
		return true, nil
	case corev1.ClaimPending, "":
		mode, err := s.bindingMode(&claim.Spec)
		return mode == storagev1.VolumeBindingWaitForFirstConsumer, err
	default:
		return false, fmt.Errorf("PVC %s/%s in status %q", claim.Namespace, claim.Name, claim.Status.Phase)
	}
}

// bindingMode returns the mode of a claim's storage class, or "" if the claim names none, or an error if the class does
// not exist.
func (s *scope) bindingMode(claim *corev1.PersistentVolumeClaimSpec) (storagev1.VolumeBindingMode, error) {
	class := ptr.Deref(claim.StorageClassName, "")
	mode, known := s.BindingModes[class]
	if !known && class != "" {
		return "", fmt.Errorf("StorageClass %s does not exist", class)
	}
	return mode, nil
}

// newClaim returns the restored claim of a volume.
func (s *scope) newClaim(v *volume) *corev1.PersistentVolumeClaim {
	from := s.VolumeSnapshots[*v.VolumeSnapshotName]
	old := &v.PersistentVolumeClaim
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Restore.Namespace, Name: v.claim,
			Labels: maps.Clone(old.Labels), Annotations: maps.Clone(old.Annotations),
		},
		Spec: capture.ClaimSpec(&old.Spec, from),
	}
	s.describe(claim, v)
	s.own(claim, v)
	return claim
}

// describe sets the labels and annotations of a restored claim. An override changes only those of the user.
func (s *scope) describe(claim *corev1.PersistentVolumeClaim, v *volume) {
	// kubectl would compare what it applies next with the manifest of another claim.
	delete(claim.Annotations, corev1.LastAppliedConfigAnnotation)
	if override := s.override(v.VolumeName); override != nil {
		for key, value := range override.Labels {
			metav1.SetMetaDataLabel(&claim.ObjectMeta, key, value)
		}
		for key, value := range override.Annotations {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, key, value)
		}
	}
	// Who may create a restore need not be one who may instruct the importer or a provisioner by a claim. KubeVirt removes
	// the content type together with the other annotations of the importer, and none of an override.
	maps.DeleteFunc(claim.Annotations, func(key, _ string) bool {
		return key != cdi.ContentTypeAnnotation &&
			slices.ContainsFunc(describesVolume, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
	})
	// The state claim gets this label when the VM is restored, because a VM starts with the claim that has the label.
	delete(claim.Labels, v1.PersistentStateLabel)
	delete(claim.Labels, snapshot.RestoreCleanupStateLabel)
	delete(claim.Annotations, snapshot.RestoreOwnedByVMAnnotation)
	capture.SetSourceName(&claim.ObjectMeta, snapshot.RestoreSourceNameLabel, s.source().Name)
	metav1.SetMetaDataLabel(&claim.ObjectMeta, snapshot.RestoreSourceNamespaceLabel, s.source().Namespace)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, snapshot.RestoreNameAnnotation, s.Restore.Name)
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, snapshot.LastRestoreAnnotation, s.mark())
}

// own makes the VM the owner of a restored claim, or prepares the claim for its adoption by the DataVolume. A VM that
// does not exist yet becomes the owner later.
func (s *scope) own(claim *corev1.PersistentVolumeClaim, v *volume) {
	switch {
	case v.dataVolume != "":
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, populatedFor, v.dataVolume)
	case s.ownership() == v1beta1.VolumeOwnershipPolicyNone:
	case s.Target != nil:
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s.Target, v1.VirtualMachineGroupVersionKind)}
	case s.owned(v):
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, snapshot.RestoreOwnedByVMAnnotation, s.Restore.Name)
	}
}

func (s *scope) ownership() v1beta1.VolumeOwnershipPolicy {
	return ptr.Deref(s.Restore.Spec.VolumeOwnershipPolicy, v1beta1.VolumeOwnershipPolicyVm)
}

// owned reports whether the VM in the snapshot owned the claim of a volume.
func (s *scope) owned(v *volume) bool {
	return slices.ContainsFunc(v.PersistentVolumeClaim.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == v1.VirtualMachineGroupVersionKind.Kind && o.Name == s.source().Name && o.UID == s.source().UID
	})
}

// restoreDataVolumes creates the DataVolumes of the VM's templates for the restored claims. It does so before the VM
// has the templates, because the VM reconciler would otherwise create the DataVolumes, and the importer would fill
// them.
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
	// The source is replaced because the claim is filled already. The importer permits virt-controller to copy from any
	// namespace, and the user could make use of that by removing the annotations from this object.
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
