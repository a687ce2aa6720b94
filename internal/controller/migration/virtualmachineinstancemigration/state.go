// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/controller/virtualmachineinstance"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// actionCreateState is the action of events about the claim with the guest's persistent state.
const actionCreateState = "CreateClaim"

// planState chooses the target's claim for the guest's persistent state: the claim of the source if both Pods can use
// it, or otherwise a new one (docs/adr/0033).
func (s *Scope) planState(ctx context.Context, config *podspec.Config) error {
	name := podspec.StateClaim(s.Own)
	if name == "" {
		return nil
	}
	claim, key := &corev1.PersistentVolumeClaim{}, client.ObjectKey{Namespace: s.VMI.Namespace, Name: name}
	if err := s.Client.Get(ctx, key, claim); err != nil {
		return fmt.Errorf("get PersistentVolumeClaim %s for the TPM's and EFI's state: %w", key, err)
	}
	if virtualmachineinstance.IsShared(claim) {
		config.StateClaim, config.StateShared = name, true
		return nil
	}
	config.StateClaim, s.guestState = s.ownState(), claim
	return nil
}

// ownState returns the name of the claim that is created for this migration.
func (s *Scope) ownState() string { return virtualmachineinstance.StateName(s.VMI, s.Migration.UID) }

// createState creates the target's claim, if it gets one of its own. It reports whether the target's Pod can be
// created.
func (s *Scope) createState(ctx context.Context) (bool, error) {
	if s.guestState == nil {
		return true, nil
	}
	claim := s.newStateClaim()
	err := s.Client.Create(ctx, claim)
	switch {
	case apierrors.IsAlreadyExists(err):
		found := &corev1.PersistentVolumeClaim{}
		if err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(claim), found); err != nil {
			return false, fmt.Errorf("get PersistentVolumeClaim %s, which exists: %w", client.ObjectKeyFromObject(claim), err)
		}
		if !s.isOwnState(found) || found.DeletionTimestamp != nil {
			s.Failure = fmt.Sprintf("PersistentVolumeClaim %s belongs to another owner: delete it and migrate again.",
				client.ObjectKeyFromObject(claim))
			return false, nil
		}
		return true, nil
	case isQuota(err):
		s.Rejected, s.Message = true, err.Error()
		return false, nil // A change of the quota triggers another reconciliation.
	case apierrors.IsInvalid(err):
		s.Failure = fmt.Sprintf("Error creating the claim for the TPM's and EFI's state: %v", err)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("create PersistentVolumeClaim %s for the TPM's and EFI's state: %w",
			client.ObjectKeyFromObject(claim), err)
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulCreate, actionCreateState,
		"Created PersistentVolumeClaim %s for the TPM's and EFI's state at the target", claim.Name)
	return true, nil
}

// newStateClaim returns the target's claim. Its spec is that of the source's claim, which is known to work for this VM.
func (s *Scope) newStateClaim() *corev1.PersistentVolumeClaim {
	source := s.guestState.Spec
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.VMI.Namespace, Name: s.ownState(),
			Labels:          map[string]string{v1.MigrationNameLabel: podspec.LabelValue(s.Migration.Name)},
			OwnerReferences: []metav1.OwnerReference{virtualmachineinstance.StateOwner(s.VMI)},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: source.AccessModes, StorageClassName: source.StorageClassName, VolumeMode: source.VolumeMode,
			VolumeAttributesClassName: source.VolumeAttributesClassName,
			Resources:                 corev1.VolumeResourceRequirements{Requests: source.Resources.Requests},
		},
	}
}

// isOwnState reports whether a claim was created for this migration and is not adopted by the VM yet.
func (s *Scope) isOwnState(claim *corev1.PersistentVolumeClaim) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.UID == virtualmachineinstance.StateOwner(s.VMI).UID &&
		isOfMigration(claim, s.Migration.Name)
}

func isOfMigration(claim *corev1.PersistentVolumeClaim, migration string) bool {
	_, adopted := claim.Labels[v1.PersistentStateLabel]
	return !adopted && claim.Labels[v1.MigrationNameLabel] == podspec.LabelValue(migration)
}

// removeState deletes the claim of a migration that is not assigned, which the caller has checked.
func (s *Scope) removeState(ctx context.Context) error {
	if !s.VMI.Spec.HasPersistentState() {
		return nil
	}
	key := client.ObjectKey{Namespace: s.VMI.Namespace, Name: s.ownState()}
	claim, err := kit.Read(ctx, key, &corev1.PersistentVolumeClaim{}, s.APIReader)
	if err != nil || claim == nil || !s.isOwnState(claim) {
		return err
	}
	return deleteState(ctx, s.Client, claim)
}

func deleteState(ctx context.Context, c client.Client, claim *corev1.PersistentVolumeClaim) error {
	if claim.DeletionTimestamp != nil {
		return nil
	}
	// The resource version ensures that the VM has not adopted the claim since it was read.
	return kit.Delete(ctx, c, claim, kit.Unchanged(claim))
}

// removeStates deletes the claims of a migration, except those that are in use. It does not need the VMI.
func removeStates(ctx context.Context, c client.Client, migration client.ObjectKey,
	used func(*corev1.PersistentVolumeClaim) (bool, error)) error {
	claims := &corev1.PersistentVolumeClaimList{}
	if err := c.List(ctx, claims, client.InNamespace(migration.Namespace),
		client.MatchingLabels{v1.MigrationNameLabel: podspec.LabelValue(migration.Name)}); err != nil {
		return fmt.Errorf("list the claims of migration %s: %w", migration, err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if !isOfMigration(claim, migration.Name) || claim.DeletionTimestamp != nil {
			continue
		}
		if used != nil {
			if stays, err := used(claim); err != nil || stays {
				return err
			}
		}
		if err := deleteState(ctx, c, claim); err != nil {
			return err
		}
	}
	return nil
}

// removeOrphanedStates deletes the claims of a migration whose finalizer was removed by another client. The VMI's
// reconciler deletes a claim to which the VMI's status refers. A claim without a VMI is kept, because it may be the
// VM's.
func removeOrphanedStates(
	ctx context.Context, c client.Client, apiReader client.Reader, migration client.ObjectKey,
) error {
	return removeStates(ctx, c, migration, func(claim *corev1.PersistentVolumeClaim) (bool, error) {
		owner := metav1.GetControllerOf(claim)
		if owner == nil {
			return true, nil
		}
		// The cache may be stale.
		if err := apiReader.Get(ctx, migration, &v1.VirtualMachineInstanceMigration{}); client.IgnoreNotFound(err) != nil ||
			err == nil {
			return true, err
		}
		// A VM and its VMI have the same name.
		vmi, key := &v1.VirtualMachineInstance{}, client.ObjectKey{Namespace: claim.Namespace, Name: owner.Name}
		if err := apiReader.Get(ctx, key, vmi); err != nil {
			return true, client.IgnoreNotFound(err)
		}
		m := vmi.Status.MigrationState
		return virtualmachineinstance.StateOwner(vmi).UID != owner.UID || vmistatus.MovesState(m) &&
			(m.SourcePersistentStatePVCName == claim.Name || m.TargetPersistentStatePVCName == claim.Name), nil
	})
}
