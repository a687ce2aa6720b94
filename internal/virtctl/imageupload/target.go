// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package imageupload

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/cdi"
	"github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/instancetype"
)

// Annotations of claims and DataVolumes that are CDI's interface to uploads.
// https://github.com/kubevirt/containerized-data-importer/blob/main/pkg/controller/common/util.go
const (
	// annUploadTarget requests a Pod that receives an upload.
	annUploadTarget = "cdi.kubevirt.io/storage.upload.target"
	// annBindImmediate requests binding even if the storage class waits for a first consumer.
	annBindImmediate = "cdi.kubevirt.io/storage.bind.immediate.requested"
	// annPodPhase is the phase of the Pod that populates the claim. Succeeded means that the claim is populated.
	annPodPhase = "cdi.kubevirt.io/storage.pod.phase"
	// annPodReady is true when that Pod can receive data.
	annPodReady = "cdi.kubevirt.io/storage.pod.ready"
	// annUsePopulator on a DataVolume is true if CDI populates another claim, PVC prime, and rebinds its volume to this
	// one.
	annUsePopulator = "cdi.kubevirt.io/storage.usePopulator"
	// annPrimeName is the name of PVC prime.
	annPrimeName = "cdi.kubevirt.io/storage.populator.pvcPrime"
)

// ensureTarget checks the existing DataVolume or claim, or creates it.
func (u *upload) ensureTarget(ctx context.Context) error {
	claim := &corev1.PersistentVolumeClaim{}
	err := u.objects.Get(ctx, u.key(), claim)
	switch {
	case apierrors.IsNotFound(err) && u.noCreate:
		return fmt.Errorf("the target does not exist; without --no-create it is created: %w", err)
	case apierrors.IsNotFound(err):
		u.printf("PVC %s/%s not found", u.namespace, u.name)
		return u.create(ctx)
	case err != nil:
		return err
	}
	if !u.claimOnly {
		if claim, err = u.claimOfDataVolume(ctx, claim); err != nil {
			return err
		}
	}
	if err := u.check(claim); err != nil {
		return err
	}
	if _, found := claim.Annotations[annUploadTarget]; !found {
		before := claim.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annUploadTarget, "")
		if err := u.objects.Patch(ctx, claim, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("PVC %s cannot be prepared for an upload: %w", claim.Name, err)
		}
	}
	u.printf("Using existing PVC %s/%s", u.namespace, claim.Name)
	return nil
}

// claimOfDataVolume returns the claim that CDI populates for a DataVolume: its own, or PVC prime.
func (u *upload) claimOfDataVolume(
	ctx context.Context, claim *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolumeClaim, error) {
	volume := &cdi.DataVolume{}
	err := u.objects.Get(ctx, u.key(), volume)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf(
			"no DataVolume is associated with the existing PVC %s/%s: upload to the claim itself with: pvc %s", u.namespace,
			u.name, u.name)
	case err != nil:
		return nil, err
	case volume.Annotations[annUsePopulator] != "true":
		return claim, nil
	case claim.Status.Phase == corev1.ClaimBound:
		return nil, fmt.Errorf("PVC %s already successfully populated", u.name)
	}
	name := claim.Annotations[annPrimeName]
	if name == "" {
		return nil, fmt.Errorf(
			"unable to get PVC Prime name from PVC %s/%s: CDI has not processed the DataVolume yet; try again", u.namespace,
			u.name)
	}
	prime := &corev1.PersistentVolumeClaim{}
	if err := u.objects.Get(ctx, client.ObjectKey{Namespace: u.namespace, Name: name}, prime); err != nil {
		return nil, fmt.Errorf("unable to get PVC Prime %s/%s: %w", u.namespace, name, err)
	}
	return prime, nil
}

// check returns an error if the claim was populated already, or was not created for an upload.
func (u *upload) check(claim *corev1.PersistentVolumeClaim) error {
	_, prepared := claim.Annotations[annUploadTarget]
	switch {
	case claim.Annotations[annPodPhase] == string(corev1.PodSucceeded):
		return fmt.Errorf("PVC %s already successfully imported/cloned/updated", u.name)
	case !u.noCreate && !prepared:
		return fmt.Errorf("PVC %s not available for upload: it was not created for one; use --no-create to overwrite it",
			u.name)
	case u.isArchive() && claim.Annotations[cdi.ContentTypeAnnotation] != string(v1beta1.DataVolumeArchive):
		return fmt.Errorf("PVC %s doesn't have archive contentType annotation: it needs %s=%s", u.name,
			cdi.ContentTypeAnnotation, v1beta1.DataVolumeArchive)
	}
	return nil
}

func (u *upload) create(ctx context.Context) error {
	size, err := u.quantity()
	if err != nil {
		return err
	}
	if u.accessMode == string(corev1.ReadOnlyMany) {
		return errors.New("cannot upload to a readonly volume, use either ReadWriteOnce or ReadWriteMany if supported")
	}
	if err := u.checkStorageClass(ctx); err != nil {
		return err
	}
	object, kind := client.Object(u.newDataVolume(size)), "DataVolume"
	if u.claimOnly {
		object, kind = u.newClaim(size), "PersistentVolumeClaim"
	}
	if err := u.objects.Create(ctx, object); err != nil {
		return fmt.Errorf("%s %s/%s was not created: %w", kind, u.namespace, u.name, err)
	}
	u.printf("%s %s/%s created", kind, u.namespace, u.name)
	return nil
}

func (u *upload) quantity() (resource.Quantity, error) {
	if u.size == "" {
		return resource.Quantity{}, errors.New("when creating a resource, the size must be specified: --size=10Gi")
	}
	size, err := resource.ParseQuantity(u.size)
	if err == nil && size.Sign() <= 0 {
		err = errors.New("it must be greater than 0")
	}
	if err != nil {
		return size, fmt.Errorf("validation failed for size=%s: %w", u.size, err)
	}
	return size, nil
}

// checkStorageClass returns an error for a storage class that does not exist, because the claim would stay pending. It
// does nothing if the user may not read storage classes.
func (u *upload) checkStorageClass(ctx context.Context) error {
	if u.storageClass == "" {
		return nil
	}
	err := u.objects.Get(ctx, client.ObjectKey{Name: u.storageClass}, &storagev1.StorageClass{})
	if err != nil && !apierrors.IsForbidden(err) {
		return fmt.Errorf("storage class %s: %w", u.storageClass, err)
	}
	return nil
}

func (u *upload) newClaim(size resource.Quantity) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: u.metadata()}
	claim.Annotations[annUploadTarget] = ""
	claim.Annotations[cdi.ContentTypeAnnotation] = string(u.contentType())
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}
	claim.Spec.StorageClassName, claim.Spec.VolumeMode = u.className(), u.mode()
	if claim.Spec.AccessModes = u.accessModes(); claim.Spec.AccessModes == nil {
		// CDI's storage profiles have defaults for DataVolumes, but not for claims.
		claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return claim
}

func (u *upload) newDataVolume(size resource.Quantity) *cdi.DataVolume {
	volume := &cdi.DataVolume{ObjectMeta: u.metadata()}
	volume.Spec.DataVolumeSpec = v1beta1.DataVolumeSpec{
		Source:      &v1beta1.DataVolumeSource{Upload: &v1beta1.DataVolumeSourceUpload{}},
		ContentType: u.contentType(),
		Storage: &v1beta1.StorageSpec{
			AccessModes: u.accessModes(), StorageClassName: u.className(), VolumeMode: u.mode(),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
		},
	}
	return volume
}

func (u *upload) metadata() metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: u.namespace, Name: u.name, Annotations: map[string]string{}, Labels: u.labels()}
	if u.forceBind {
		meta.Annotations[annBindImmediate] = ""
	}
	return meta
}

// labels returns the labels from which VMs infer an instance type and a preference.
func (u *upload) labels() map[string]string {
	labels := map[string]string{}
	for label, value := range map[string]string{
		instancetype.DefaultInstancetypeLabel:     u.defaultInstancetype,
		instancetype.DefaultInstancetypeKindLabel: u.defaultInstancetypeKind,
		instancetype.DefaultPreferenceLabel:       u.defaultPreference,
		instancetype.DefaultPreferenceKindLabel:   u.defaultPreferenceKind,
	} {
		if value != "" {
			labels[label] = value
		}
	}
	return labels
}

func (u *upload) contentType() v1beta1.DataVolumeContentType {
	if u.isArchive() {
		return v1beta1.DataVolumeArchive
	}
	return v1beta1.DataVolumeKubeVirt
}

func (u *upload) accessModes() []corev1.PersistentVolumeAccessMode {
	if u.accessMode == "" {
		return nil
	}
	return []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(u.accessMode)}
}

func (u *upload) className() *string {
	if u.storageClass == "" {
		return nil
	}
	return &u.storageClass
}

func (u *upload) mode() *corev1.PersistentVolumeMode {
	mode := corev1.PersistentVolumeFilesystem
	switch u.volumeMode {
	case "":
		return nil
	case modeBlock:
		mode = corev1.PersistentVolumeBlock
	}
	return &mode
}
