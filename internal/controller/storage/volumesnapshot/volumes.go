// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package volumesnapshot

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/api/csi"
	"github.com/vireo-project/vireo/api/snapshot/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/snapshot/capture"
	"github.com/vireo-project/vireo/internal/podspec"
)

// Volumes returns the volumes of a VM, to which its instance type and preference have been applied, and which of them a
// snapshot can include. cached reads claims and storage classes.
func Volumes(
	ctx context.Context, cached client.Reader, snapshots Reader, vm *v1.VirtualMachine,
) ([]capture.Volume, error) {
	if vm.Spec.Template == nil {
		return nil, nil
	}
	storage, err := read(ctx, cached, snapshots)
	if err != nil {
		return nil, err
	}
	if storage.Claims, err = claimsOf(ctx, cached, vm); err != nil {
		return nil, err
	}
	if vm.Spec.Template.Spec.HasPersistentState() {
		if storage.State, err = StateClaim(ctx, cached, vm); err != nil {
			return nil, err
		}
	}
	return capture.Volumes(vm, storage), nil
}

// OfContent returns the VolumeSnapshots of a content that exist, by name. There are none if the content has more
// volumes than a VM: it is not used.
func OfContent(
	ctx context.Context, snapshots Reader, content *v1beta1.VirtualMachineSnapshotContent,
) (map[string]*csi.VolumeSnapshot, error) {
	out := map[string]*csi.VolumeSnapshot{}
	if capture.TooManyVolumes(content) != "" {
		return out, nil
	}
	for i := range content.Spec.VolumeBackups {
		name := ptr.Deref(content.Spec.VolumeBackups[i].VolumeSnapshotName, "")
		if name == "" {
			continue
		}
		taken, err := snapshots.Get(ctx, client.ObjectKey{Namespace: content.Namespace, Name: name})
		switch {
		case errors.Is(err, ErrNotInstalled):
			return out, nil
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, err
		default:
			out[name] = taken
		}
	}
	return out, nil
}

// claimsOf returns the claims of a VM's volumes that exist, by name.
func claimsOf(
	ctx context.Context, cached client.Reader, vm *v1.VirtualMachine,
) (map[string]*corev1.PersistentVolumeClaim, error) {
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range vm.Spec.Template.Spec.Volumes {
		name := capture.ClaimName(&vm.Spec.Template.Spec.Volumes[i])
		if name == "" || claims[name] != nil {
			continue
		}
		claim, key := &corev1.PersistentVolumeClaim{}, client.ObjectKey{Namespace: vm.Namespace, Name: name}
		switch err := cached.Get(ctx, key, claim); {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("get PersistentVolumeClaim %s: %w", key, err)
		default:
			claims[name] = claim
		}
	}
	return claims, nil
}

// ClassOf returns the VolumeSnapshotClass for a storage class, or an error that explains why there is none.
func ClassOf(ctx context.Context, cached client.Reader, snapshots Reader, storageClass string) (string, error) {
	storage, err := read(ctx, cached, snapshots)
	if err != nil {
		return "", err
	}
	class, err := storage.SnapshotClass(storageClass)
	if err == nil && class == "" {
		err = fmt.Errorf("there is no VolumeSnapshotClass for StorageClass %q any more", storageClass)
	}
	return class, err
}

// read reads what determines the class.
func read(ctx context.Context, cached client.Reader, snapshots Reader) (storage capture.Storage, err error) {
	if storage.Classes, err = snapshots.Classes(ctx); err != nil {
		return storage, err
	}
	if storage.Preferred, err = snapshots.Preferred(ctx); err != nil {
		return storage, err
	}
	classes := &storagev1.StorageClassList{}
	if err := cached.List(ctx, classes); err != nil {
		return storage, fmt.Errorf("list StorageClasses: %w", err)
	}
	storage.Drivers = make(map[string]string, len(classes.Items))
	for i := range classes.Items {
		storage.Drivers[classes.Items[i].Name] = classes.Items[i].Provisioner
	}
	return storage, nil
}

// StateClaim returns the claim with a VM's persistent state, or nil: the VM's own, or else one without an owner, as
// after a restore.
func StateClaim(
	ctx context.Context, cached client.Reader, vm *v1.VirtualMachine,
) (*corev1.PersistentVolumeClaim, error) {
	claims := &corev1.PersistentVolumeClaimList{}
	err := cached.List(ctx, claims, client.InNamespace(vm.Namespace),
		client.MatchingLabels{v1.PersistentStateLabel: podspec.LabelValue(vm.Name)})
	if err != nil {
		return nil, fmt.Errorf("list the claims with the persistent state of VirtualMachine %s/%s: %w", vm.Namespace, vm.Name,
			err)
	}
	var found *corev1.PersistentVolumeClaim
	rank := 0
	for i := range claims.Items {
		claim := &claims.Items[i]
		// The name decides between equal ranks, because the order of a cache's list varies.
		if r := rankOf(claim, vm); r > rank || r == rank && found != nil && claim.Name < found.Name {
			found, rank = claim, r
		}
	}
	return found, nil
}

// rankOf returns how well a claim suits a VM; 0 if it belongs to another VM, such as an earlier one of the same name.
func rankOf(claim *corev1.PersistentVolumeClaim, vm *v1.VirtualMachine) int {
	owned, foreign := false, false
	for _, owner := range claim.OwnerReferences {
		owned = owned || owner.UID == vm.UID
		foreign = foreign || owner.Controller != nil && *owner.Controller && owner.UID != vm.UID
	}
	switch {
	case foreign:
		return 0
	case claim.DeletionTimestamp != nil:
		return 1
	case owned:
		return 3
	default:
		return 2
	}
}
