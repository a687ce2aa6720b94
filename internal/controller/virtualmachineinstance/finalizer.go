// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/podspec"
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

// releaseVMI lets a deleted VMI go once none of its Pods is left, as KubeVirt does: until then its clients read how it ended. Its
// status is written by now, so that a Pod that has ended, and says how, is no longer needed. The VM that owns the VMI has a
// finalizer of its own.
func releaseVMI(ctx context.Context, s *Scope) error {
	if !s.deleting() || PodState(s.Pod) == migration.PodAlive || PodState(s.Other) == migration.PodAlive {
		return nil
	}
	if gone, err := s.removePods(ctx); err != nil || !gone {
		return err
	}
	err := s.patchMetadata(ctx, func(vmi *v1.VirtualMachineInstance) {
		vmi.Finalizers = slices.DeleteFunc(vmi.Finalizers, func(f string) bool {
			return f == v1.VirtualMachineInstanceFinalizer || f == v1.DeprecatedVirtualMachineInstanceFinalizer
		})
	})
	return client.IgnoreNotFound(err)
}

// removePods deletes what is left of a VMI's Pods and says whether there was none. The end of each Pod wakes us: one that has lost its
// owner is adopted for that.
func (s *Scope) removePods(ctx context.Context) (gone bool, err error) {
	if s.Pod != nil || s.Other != nil {
		return false, errors.Join(s.deletePod(ctx), s.deleteOther(ctx))
	}
	pods, err := s.listPods(ctx)
	if err != nil {
		return false, err
	}
	gone = true
	for i := range pods {
		pod := &pods[i]
		if !s.owns(pod) {
			continue
		}
		gone = false
		if !podspec.IsOf(pod, s.VMI) {
			if pod, err = s.adopt(ctx, pod); err != nil {
				return false, err
			}
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		if err := s.Client.Delete(ctx, pod, client.Preconditions{UID: ptr.To(pod.UID)}); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("delete Pod %s of a VirtualMachineInstance that is deleted: %w", client.ObjectKeyFromObject(pod), err)
		}
	}
	return gone, nil
}

// listPods returns the Pods that are marked as the VMI's. Whether one is, their owner says.
func (s *Scope) listPods(ctx context.Context) ([]corev1.Pod, error) {
	pods := &corev1.PodList{}
	err := s.Client.List(ctx, pods, client.InNamespace(s.VMI.Namespace), client.MatchingLabels{v1.CreatedByLabel: string(s.VMI.UID)})
	if err != nil {
		return nil, fmt.Errorf("list the Pods of VirtualMachineInstance %s: %w", client.ObjectKeyFromObject(s.VMI), err)
	}
	return pods.Items, nil
}
