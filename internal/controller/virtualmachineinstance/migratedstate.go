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
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// settleStateClaims labels the claim of the node that owns the guest, so that the VM's next start uses it, and deletes
// the migration's other claim. It does so once it is certain which is which (docs/adr/0033).
func (s *scope) settleStateClaims(ctx context.Context) error {
	keep, drop := vmistatus.StateClaims(&s.vmi.Status)
	if keep == "" {
		return nil
	}
	kept, err := readClaim(ctx, s.client, s.vmi.Namespace, keep)
	if err != nil {
		return err
	}
	if kept == nil {
		// The other claim is deleted next, so the API server has to confirm that the claim to keep is gone.
		if kept, err = readClaim(ctx, s.apiReader, s.vmi.Namespace, keep); err != nil {
			return err
		}
	}
	if kept != nil {
		if err := s.labelStateClaim(ctx, kept); err != nil {
			return err
		}
	}
	dropped, err := readClaim(ctx, s.client, s.vmi.Namespace, drop)
	if err != nil || dropped == nil || dropped.DeletionTimestamp != nil {
		return err
	}
	return s.dropStateClaim(ctx, dropped)
}

// StateClaimsMerged reports whether nothing is left to do about the state claims of a VMI's finished migration.
func StateClaimsMerged(ctx context.Context, reader client.Reader, vmi *v1.VirtualMachineInstance) (bool, error) {
	keep, drop := vmistatus.StateClaims(&vmi.Status)
	if keep == "" {
		return true, nil
	}
	kept, err := readClaim(ctx, reader, vmi.Namespace, keep)
	if err != nil || kept != nil && !hasState(kept, vmi) {
		return false, err
	}
	dropped, err := readClaim(ctx, reader, vmi.Namespace, drop)
	gone := dropped == nil || dropped.DeletionTimestamp != nil || !hasState(dropped, vmi) && !ownsState(dropped, vmi)
	return err == nil && gone, err
}

// hasState reports whether the VM's next start uses the claim.
func hasState(claim *corev1.PersistentVolumeClaim, vmi *v1.VirtualMachineInstance) bool {
	return claim.Labels[v1.PersistentStateLabel] == podspec.LabelValue(vmi.Name)
}

// ownsState reports whether the claim belongs to the VM, or to the VMI if it has no VM.
func ownsState(claim *corev1.PersistentVolumeClaim, vmi *v1.VirtualMachineInstance) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.UID == StateOwner(vmi).UID
}

// labelStateClaim makes the next start use the claim.
func (s *scope) labelStateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if hasState(claim, s.vmi) {
		return nil
	}
	return s.patchStateLabels(ctx, claim, func(labels map[string]string) {
		labels[v1.PersistentStateLabel] = podspec.LabelValue(s.vmi.Name)
		delete(labels, v1.MigrationNameLabel)
	})
}

// dropStateClaim deletes the claim whose state is outdated. One that the VM does not own only loses its label.
func (s *scope) dropStateClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if !ownsState(claim, s.vmi) {
		if !hasState(claim, s.vmi) {
			return nil
		}
		return s.patchStateLabels(ctx, claim, func(labels map[string]string) { delete(labels, v1.PersistentStateLabel) })
	}
	err := s.client.Delete(ctx, claim, client.Preconditions{UID: ptr.To(claim.UID)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete PersistentVolumeClaim %s, whose state is out of date: %w",
			client.ObjectKeyFromObject(claim), err)
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulDelete, actionDelete,
		"Deleted PersistentVolumeClaim %s: the TPM's and EFI's state is now in another one", claim.Name)
	return nil
}

func (s *scope) patchStateLabels(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, change func(labels map[string]string),
) error {
	_, err := optimistic.Patch(ctx, s.client, claim, func(claim *corev1.PersistentVolumeClaim) {
		if claim.Labels == nil {
			claim.Labels = map[string]string{}
		}
		change(claim.Labels)
	})
	if err != nil {
		return fmt.Errorf("label PersistentVolumeClaim %s with the guest's persistent state: %w",
			client.ObjectKeyFromObject(claim), err)
	}
	return nil
}
