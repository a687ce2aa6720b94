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
)

// Annotations of default storage classes: the one for VMs comes before the one for all.
// Source: kubevirt/kubevirt pkg/storage/backend-storage, getStorageClass.
const (
	defaultVirtClass = "storageclass.kubevirt.io/is-default-virt-class"
	defaultClass     = "storageclass.kubernetes.io/is-default-class"
)

// storageProfile is what the importer knows about a storage class of the same name.
var storageProfile = schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1", Kind: "StorageProfile"}

// stateClass is the configured storage class or the cluster's default. If there is none, it says so and returns nil.
func (s *Scope) stateClass(ctx context.Context) (*storagev1.StorageClass, error) {
	if name := s.StateStorageClass; name != "" {
		class := &storagev1.StorageClass{}
		err := s.Client.Get(ctx, client.ObjectKey{Name: name}, class)
		if apierrors.IsNotFound(err) {
			s.awaitClass(fmt.Sprintf("there is no StorageClass %s, which spec.configuration.vmStateStorageClass of the "+
				"KubeVirt object names", name))
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("get StorageClass %s: %w", name, err)
		}
		return class, nil
	}
	list := &storagev1.StorageClassList{}
	if err := s.Client.List(ctx, list); err != nil {
		return nil, fmt.Errorf("list StorageClasses: %w", err)
	}
	class := defaultOf(list.Items)
	if class == nil {
		s.awaitClass("the cluster has no default StorageClass: mark one, or set spec.configuration.vmStateStorageClass " +
			"of the KubeVirt object")
	}
	return class, nil
}

func (s *Scope) awaitClass(message string) {
	s.Problem = &Problem{Reason: ReasonStateCreateFailed, Message: "Cannot keep the TPM's and EFI's state: " + message}
	s.RequeueAfter = classRetry
}

// defaultOf picks the default class. Of several the newest counts, as in Kubernetes, and then the first by name.
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

// stateAccess is ReadWriteMany where the importer knows that file systems of the class can be shared, so that the VM can
// move to another node with its state, and otherwise what every storage can do.
func (s *Scope) stateAccess(ctx context.Context, class string) ([]corev1.PersistentVolumeAccessMode, error) {
	profile := &unstructured.Unstructured{}
	profile.SetGroupVersionKind(storageProfile)
	err := s.Live.Get(ctx, client.ObjectKey{Name: class}, profile)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, nil // No importer, or it does not know the class.
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

// sharedAccess reads the access mode of file systems from a storage profile.
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
