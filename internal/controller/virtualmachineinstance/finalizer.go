// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/migration"
)

// holdVMI puts the finalizer on a VMI that got past the webhook without it.
func holdVMI(ctx context.Context, s *Scope) error {
	if s.deleting() {
		return nil
	}
	return s.patchMetadata(ctx, func(vmi *v1.VirtualMachineInstance) {
		if !slices.Contains(vmi.Finalizers, v1.VirtualMachineInstanceFinalizer) {
			vmi.Finalizers = append(vmi.Finalizers, v1.VirtualMachineInstanceFinalizer)
		}
	})
}

// releaseVMI lets a deleted VMI go once nothing of it can run any more. The VM that owns it has a finalizer of its own.
func releaseVMI(ctx context.Context, s *Scope) error {
	stopped := PodState(s.Pod) != migration.PodAlive && PodState(s.Other) != migration.PodAlive
	if !s.deleting() || !stopped {
		return nil
	}
	err := s.patchMetadata(ctx, func(vmi *v1.VirtualMachineInstance) {
		vmi.Finalizers = slices.DeleteFunc(vmi.Finalizers, func(f string) bool {
			return f == v1.VirtualMachineInstanceFinalizer || f == v1.DeprecatedVirtualMachineInstanceFinalizer
		})
	})
	return client.IgnoreNotFound(err)
}
