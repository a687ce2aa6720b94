// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/outcome"
)

// Annotations of default storage classes. The one for VMs takes precedence. Source: kubevirt/kubevirt
// pkg/storage/backend-storage, getStorageClass.
const (
	defaultVirtClass = "storageclass.kubevirt.io/is-default-virt-class"
	defaultClass     = "storageclass.kubernetes.io/is-default-class"
)

// storageProfile is the kind in which the importer describes the storage class of the same name.
var storageProfile = schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1", Kind: "StorageProfile"}

// stateClass returns the configured storage class or the cluster's default. If there is none it sets the problem and
// returns nil.
func (s *scope) stateClass(ctx context.Context) (*storagev1.StorageClass, error) {
	if name := s.config.VMStateStorageClass; name != "" {
		class := &storagev1.StorageClass{}
		err := s.client.Get(ctx, client.ObjectKey{Name: name}, class)
		if apierrors.IsNotFound(err) {
			s.awaitStorageClass(fmt.Sprintf("there is no StorageClass %s, which spec.configuration.vmStateStorageClass of the "+
				"KubeVirt object names", name))
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("get StorageClass %s: %w", name, err)
		}
		return class, nil
	}
	list := &storagev1.StorageClassList{}
	if err := s.client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	class := defaultOf(list.Items)
	if class == nil {
		s.awaitStorageClass("the cluster has no default StorageClass: mark one, or set spec.configuration.vmStateStorageClass " +
			"of the KubeVirt object")
	}
	return class, nil
}

func (s *scope) awaitStorageClass(message string) {
	s.problem = &problem{reason: ReasonStateCreateFailed, message: "Cannot keep the TPM's and EFI's state: " + message}
	s.requeueAfter = outcome.Sooner(s.requeueAfter, classRetry)
}

// defaultOf returns the default class: of several the newest, as in Kubernetes, and then the first by name.
func defaultOf(classes []storagev1.StorageClass) *storagev1.StorageClass {
	for _, annotation := range []string{defaultVirtClass, defaultClass} {
		marked := slices.DeleteFunc(slices.Clone(classes), func(c storagev1.StorageClass) bool {
			return c.Annotations[annotation] != "true"
		})
		slices.SortFunc(marked, func(a, b storagev1.StorageClass) int {
			return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
		})
		if len(marked) > 0 {
			return &marked[0]
		}
	}
	return nil
}

// stateAccess returns ReadWriteMany if the importer knows that file systems of the class can be shared, so that the VM
// can be migrated with its state. Otherwise it returns ReadWriteOnce, which every storage supports.
func (s *scope) stateAccess(ctx context.Context, class string) ([]corev1.PersistentVolumeAccessMode, error) {
	profile := &unstructured.Unstructured{}
	profile.SetGroupVersionKind(storageProfile)
	err := s.apiReader.Get(ctx, client.ObjectKey{Name: class}, profile)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		// There is no importer, or it does not know the class.
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get StorageProfile %s: %w", class, err)
	}
	modes, err := sharedAccess(profile)
	if err != nil {
		return nil, fmt.Errorf("read the status of StorageProfile %s: %w", class, err)
	}
	return modes, nil
}

// sharedAccess returns the access modes for file systems according to a storage profile.
func sharedAccess(profile *unstructured.Unstructured) ([]corev1.PersistentVolumeAccessMode, error) {
	var status struct {
		ClaimPropertySets []struct {
			AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes"`
			VolumeMode  corev1.PersistentVolumeMode         `json:"volumeMode"`
		} `json:"claimPropertySets"`
	}
	content, _, err := unstructured.NestedMap(profile.Object, "status")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(content, &status)
	}
	if err != nil {
		return nil, err
	}
	for _, set := range status.ClaimPropertySets {
		if set.VolumeMode == corev1.PersistentVolumeFilesystem && slices.Contains(set.AccessModes, corev1.ReadWriteMany) {
			return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, nil
		}
	}
	return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, nil
}
