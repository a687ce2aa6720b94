// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachinepool

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/vireo-project/vireo/api/cdi"
	poolapi "github.com/vireo-project/vireo/api/pool"
	poolv1 "github.com/vireo-project/vireo/api/pool/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/virtualmachine"
	"github.com/vireo-project/vireo/internal/optimistic"
)

// dropFinalizer removes the finalizer of pools.
func dropFinalizer(object client.Object) {
	controllerutil.RemoveFinalizer(object, poolapi.VirtualMachinePoolControllerFinalizer)
}

func hasFinalizer(object client.Object) bool {
	return controllerutil.ContainsFinalizer(object, poolapi.VirtualMachinePoolControllerFinalizer)
}

// dropOwner removes an owner reference.
func dropOwner(object client.Object, uid types.UID) {
	object.SetOwnerReferences(
		slices.DeleteFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == uid }))
}

// patch changes the metadata of a VM unless it has changed since it was read. A VM that no longer exists is no error.
func patch(ctx context.Context, s *Scope, vm *v1.VirtualMachine, change func(*v1.VirtualMachine)) error {
	if _, err := optimistic.Patch(ctx, s.Client, vm, change); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("patch VirtualMachine %s: %w", client.ObjectKeyFromObject(vm), err)
	}
	return nil
}

// releaseLeftovers removes the finalizer from VMs of earlier pools of the name, and from VMs that were detached by
// removing their owner reference.
func releaseLeftovers(ctx context.Context, s *Scope) error {
	var uid types.UID
	if s.Pool != nil {
		uid = s.Pool.UID
	}
	found := leftovers(s.Key.Name, uid, s.VMs)
	if len(found) == 0 {
		return nil
	}
	// The cache may contain the VMs of a new pool before it contains the pool.
	live := &poolv1.VirtualMachinePool{}
	if err := client.IgnoreNotFound(s.APIReader.Get(ctx, s.Key, live)); err != nil {
		return fmt.Errorf("get VirtualMachinePool %s: %w", s.Key, err)
	}
	var errs []error
	for _, vm := range found {
		if owner := ownerUID(vm); owner == "" || owner != live.UID {
			errs = append(errs, patch(ctx, s, vm, func(vm *v1.VirtualMachine) { dropFinalizer(vm) }))
		}
	}
	return errors.Join(errs...)
}

// detach removes the pool from the owners of VMs whose labels no longer match the selector.
func detach(ctx context.Context, s *Scope, vms []*v1.VirtualMachine) error {
	errs := make([]error, 0, len(vms))
	for _, vm := range vms {
		errs = append(errs, patch(ctx, s, vm, func(vm *v1.VirtualMachine) {
			dropOwner(vm, s.Pool.UID)
			dropFinalizer(vm)
		}))
	}
	return errors.Join(errs...)
}

// releaseDeleting removes the finalizer from VMs that are being deleted, by the pool or another client, once it has
// removed them from the owners of the disks that are to be kept. The disks of a VM that is deleted in the foreground,
// as when it is healed, are not kept.
func releaseDeleting(ctx context.Context, s *Scope) error {
	keeps := s.Pool.DeletionTimestamp == nil && keepsState(&s.Pool.Spec)
	var errs []error
	for _, m := range s.members {
		if !m.deleting() || !hasFinalizer(m.vm) {
			continue
		}
		var err error
		if keeps && !controllerutil.ContainsFinalizer(m.vm, metav1.FinalizerDeleteDependents) {
			err = keepDisks(ctx, s, m.vm)
		}
		if err == nil {
			err = patch(ctx, s, m.vm, func(vm *v1.VirtualMachine) { dropFinalizer(vm) })
		}
		s.fail(failedDelete, err)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// releasePool removes the finalizer of pools from the pool. KubeVirt sets it, Vireo does not.
func releasePool(ctx context.Context, s *Scope) error {
	err := kit.Patch(ctx, s.Client, &s.Pool, func(pool *poolv1.VirtualMachinePool) { dropFinalizer(pool) })
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer of VirtualMachinePool %s: %w", s.Key, err)
	}
	return nil
}

// keepDisks removes the VM from the owners of its DataVolumes and claims, so that they are not deleted with it. The
// next VM of its name adopts them. They are read from the API server, because one that the cache does not contain yet
// would be deleted.
func keepDisks(ctx context.Context, s *Scope, vm *v1.VirtualMachine) error {
	dvs, claims := virtualmachine.DataVolumeNames(vm), virtualmachine.ClaimNames(vm)
	errs := make([]error, 0, len(dvs)+len(claims))
	for _, name := range dvs {
		errs = append(errs, keep(ctx, s, vm, cdi.GroupVersion.WithKind("DataVolume"), name))
	}
	for _, name := range claims {
		errs = append(errs, keep(ctx, s, vm, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), name))
	}
	return errors.Join(errs...)
}

// keep removes the VM from the owners of an object of its namespace, if it is the object's controller.
func keep(ctx context.Context, s *Scope, vm *v1.VirtualMachine, kind schema.GroupVersionKind, name string) error {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	err := s.APIReader.Get(ctx, client.ObjectKey{Namespace: vm.Namespace, Name: name}, object)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil
	case err == nil && metav1.IsControlledBy(object, vm):
		_, err = optimistic.Patch(ctx, s.Client, object, func(o *metav1.PartialObjectMetadata) { dropOwner(o, vm.UID) })
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("keep %s %s/%s: %w", kind.Kind, vm.Namespace, name, err)
	}
	return nil
}
