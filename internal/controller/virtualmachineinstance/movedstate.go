// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// settleState makes the claim of the node that owns the guest the one by which the VM is started next, and then takes the
// migration's other claim away, as soon as it is certain which one is which (docs/adr/0033).
func settleState(ctx context.Context, s *Scope) error {
	keep, drop := vmistatus.StateClaims(&s.VMI.Status)
	if keep == "" {
		return nil
	}
	kept, err := claimOf(ctx, s.Client, s.VMI, keep)
	if err != nil {
		return err
	}
	if kept == nil {
		// A cache that is behind must not cost a VM its state.
		if kept, err = claimOf(ctx, s.Live, s.VMI, keep); err != nil {
			return err
		}
	}
	if kept != nil {
		if err := s.adoptState(ctx, kept); err != nil {
			return err
		}
	}
	dropped, err := claimOf(ctx, s.Client, s.VMI, drop)
	if err != nil || dropped == nil || dropped.DeletionTimestamp != nil {
		return err
	}
	return s.dropState(ctx, dropped)
}

// StateSettled says that nothing is left to be done about the claims of a VMI's migration that has ended.
func StateSettled(ctx context.Context, reader client.Reader, vmi *v1.VirtualMachineInstance) (bool, error) {
	keep, drop := vmistatus.StateClaims(&vmi.Status)
	if keep == "" {
		return true, nil
	}
	kept, err := claimOf(ctx, reader, vmi, keep)
	if err != nil || kept != nil && !hasState(kept, vmi) {
		return false, err
	}
	dropped, err := claimOf(ctx, reader, vmi, drop)
	return err == nil && (dropped == nil || dropped.DeletionTimestamp != nil || !hasState(dropped, vmi) && !ownsState(dropped, vmi)), err
}

// claimOf reads a claim; nil means that there is none.
func claimOf(ctx context.Context, reader client.Reader, vmi *v1.VirtualMachineInstance, name string) (*corev1.PersistentVolumeClaim, error) {
	claim, key := &corev1.PersistentVolumeClaim{}, client.ObjectKey{Namespace: vmi.Namespace, Name: name}
	if err := reader.Get(ctx, key, claim); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("get PersistentVolumeClaim %s with the machine's state: %w", key, err)
	}
	return claim, nil
}

// hasState says that a start of the VM finds the claim.
func hasState(claim *corev1.PersistentVolumeClaim, vmi *v1.VirtualMachineInstance) bool {
	return claim.Labels[v1.PersistentStateLabel] == vmi.Name
}

func ownsState(claim *corev1.PersistentVolumeClaim, vmi *v1.VirtualMachineInstance) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.UID == StateOwner(vmi).UID
}

// adoptState has the next start find the claim.
func (s *Scope) adoptState(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if hasState(claim, s.VMI) {
		return nil
	}
	return s.labelState(ctx, claim, func(labels map[string]string) {
		labels[v1.PersistentStateLabel] = s.VMI.Name
		delete(labels, v1.MigrationNameLabel)
	})
}

// dropState deletes the claim that is out of date. One that somebody else made, as by a restore, only is not the VM's any more.
func (s *Scope) dropState(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if !ownsState(claim, s.VMI) {
		if !hasState(claim, s.VMI) {
			return nil
		}
		return s.labelState(ctx, claim, func(labels map[string]string) { delete(labels, v1.PersistentStateLabel) })
	}
	err := s.Client.Delete(ctx, claim, client.Preconditions{UID: ptr.To(claim.UID)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete PersistentVolumeClaim %s, whose state is out of date: %w", client.ObjectKeyFromObject(claim), err)
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete,
		"Deleted PersistentVolumeClaim %s: the TPM's and EFI's state is not in it any more", claim.Name)
	return nil
}

func (s *Scope) labelState(ctx context.Context, claim *corev1.PersistentVolumeClaim, change func(labels map[string]string)) error {
	changed := claim.DeepCopy()
	if changed.Labels == nil {
		changed.Labels = map[string]string{}
	}
	change(changed.Labels)
	lock := client.MergeFromWithOptions(claim, client.MergeFromWithOptimisticLock{})
	if err := s.Client.Patch(ctx, changed, lock); err != nil {
		return fmt.Errorf("label PersistentVolumeClaim %s with the machine's state: %w", client.ObjectKeyFromObject(claim), err)
	}
	return nil
}
