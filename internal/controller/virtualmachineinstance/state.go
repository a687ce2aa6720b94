// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Reasons of events and of the condition Synchronized about the claim with the machine's state. KubeVirt's names.
const (
	ReasonStateCreateFailed = "FailedBackendStorageCreate"
	ReasonStateNotReady     = "BackendStorageNotReady"
)

const (
	// stateSize is the size of the claim. KubeVirt's value.
	stateSize = "10Mi"
	// applyStorageProfile lets the importer raise the size to the least that the storage makes.
	// Source: kubevirt/kubevirt pkg/storage/backend-storage, LabelApplyStorageProfile.
	applyStorageProfile = "cdi.kubevirt.io/applyStorageProfile"
	// classRetry is the pause between two looks for a storage class. Nothing tells when one comes.
	classRetry = 15 * time.Second
)

// errForeignClaim is a claim of the state's name that belongs to somebody else.
var errForeignClaim = errors.New("belongs to somebody else: delete it, or give the VirtualMachine another name")

// keepState finds the claim with the machine's state, and makes it before there is a Pod that needs it. It outlives the
// VMI: it belongs to the VM.
func keepState(ctx context.Context, s *Scope) error {
	if !s.preparing() || !s.VMI.Spec.HasPersistentState() {
		return nil
	}
	if s.Pod != nil {
		return s.readStateOfPod(ctx)
	}
	if s.Problem != nil || s.End != nil {
		return nil // Nothing is kept for what cannot start.
	}
	claim, err := s.findState(ctx, s.Client)
	if claim == nil && err == nil {
		claim, err = s.createState(ctx)
	}
	if err != nil {
		s.Problem = &Problem{Reason: ReasonStateCreateFailed, Message: err.Error()}
		if apierrors.IsInvalid(err) {
			return reconcile.TerminalError(err)
		}
		return err
	}
	if claim == nil {
		return nil // createState told what is missing.
	}
	s.State, s.Config.StateClaim = claim, claim.Name
	return s.awaitState(ctx)
}

// readStateOfPod reads the claim that the Pod was made with, for the status.
func (s *Scope) readStateOfPod(ctx context.Context) error {
	for _, volume := range s.Pod.Spec.Volumes {
		if volume.Name != launcherpod.StateVolume || volume.PersistentVolumeClaim == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		key := client.ObjectKey{Namespace: s.VMI.Namespace, Name: volume.PersistentVolumeClaim.ClaimName}
		if err := s.Client.Get(ctx, key, claim); err != nil {
			return client.IgnoreNotFound(fmt.Errorf("get PersistentVolumeClaim %s: %w", key, err))
		}
		s.State = claim
	}
	return nil
}

// findState returns the claim whose label names this VM, or nil. One that belongs to nobody is taken as it is, as after
// a restore; one that belongs to an earlier VM of the name is about to go with it.
func (s *Scope) findState(ctx context.Context, reader client.Reader) (*corev1.PersistentVolumeClaim, error) {
	list := &corev1.PersistentVolumeClaimList{}
	err := reader.List(ctx, list, client.InNamespace(s.VMI.Namespace),
		client.MatchingLabels{v1.PersistentStateLabel: s.VMI.Name})
	if err != nil {
		return nil, fmt.Errorf("list the claims with the machine's state: %w", err)
	}
	var found *corev1.PersistentVolumeClaim
	for i := range list.Items {
		claim := &list.Items[i]
		owner := metav1.GetControllerOf(claim)
		switch {
		case claim.DeletionTimestamp != nil:
		case owner != nil && owner.UID == s.stateOwner().UID:
			return claim, nil
		case owner == nil && found == nil:
			found = claim
		}
	}
	return found, nil
}

// stateOwner is the VM, with which the state goes, or the VMI itself if no VM made it.
func (s *Scope) stateOwner() metav1.OwnerReference {
	owner := metav1.GetControllerOf(s.VMI)
	if owner != nil && owner.Kind == v1.VirtualMachineGroupVersionKind.Kind {
		return *owner
	}
	return *metav1.NewControllerRef(s.VMI, v1.VirtualMachineInstanceGroupVersionKind)
}

// stateName follows from the owner, so that a stale cache cannot make a second claim, and so that a VM never gets the
// claim of an earlier one of its name.
func (s *Scope) stateName() string {
	sum := sha256.Sum256([]byte(s.stateOwner().UID))
	const suffix = 5 // characters, as many as names that the API server makes up get
	return v1.PersistentStateLabel + "-" + s.VMI.Name + "-" + hex.EncodeToString(sum[:])[:suffix]
}

// createState makes the claim. Without a storage class it says so and returns nil.
func (s *Scope) createState(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	// The cache may not show yet what somebody restored.
	if claim, err := s.findState(ctx, s.Live); claim != nil || err != nil {
		return claim, err
	}
	class, err := s.stateClass(ctx)
	if class == nil || err != nil {
		return nil, err
	}
	modes, err := s.stateAccess(ctx, class.Name)
	if err != nil {
		return nil, err
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.VMI.Namespace, Name: s.stateName(),
			Labels:          map[string]string{v1.PersistentStateLabel: s.VMI.Name, applyStorageProfile: "true"},
			OwnerReferences: []metav1.OwnerReference{s.stateOwner()},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      modes,
			StorageClassName: ptr.To(class.Name),
			VolumeMode:       ptr.To(corev1.PersistentVolumeFilesystem),
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(stateSize)},
			},
		},
	}
	err = s.Client.Create(ctx, claim)
	if apierrors.IsAlreadyExists(err) {
		return nil, s.explainTaken(ctx, client.ObjectKeyFromObject(claim))
	}
	if err != nil {
		return nil, fmt.Errorf("create PersistentVolumeClaim %s for the TPM's and EFI's state: %w", claim.Name, err)
	}
	s.event(corev1.EventTypeNormal, ReasonSuccessfulCreate, actionCreateState,
		"Created PersistentVolumeClaim %s for the TPM's and EFI's state", claim.Name)
	return claim, nil
}

// explainTaken says why a claim of the state's name is not the state's.
func (s *Scope) explainTaken(ctx context.Context, key client.ObjectKey) error {
	claim := &corev1.PersistentVolumeClaim{}
	if err := s.Live.Get(ctx, key, claim); err != nil {
		return fmt.Errorf("get PersistentVolumeClaim %s, which exists: %w", key, err)
	}
	if claim.DeletionTimestamp != nil {
		return fmt.Errorf("PersistentVolumeClaim %s is being deleted, waiting until it is gone", key)
	}
	return fmt.Errorf("PersistentVolumeClaim %s %w", key, errForeignClaim)
}

// awaitState waits until the claim is bound, except where it is bound for the first Pod that uses it: this is that Pod.
func (s *Scope) awaitState(ctx context.Context) error {
	claim := s.State
	switch {
	case IsBlock(claim):
		s.stateNotReady("is a block device: it must be a file system")
		return nil
	case claim.Status.Phase == corev1.ClaimLost:
		s.stateNotReady("has lost its PersistentVolume")
		return nil
	case claim.Status.Phase == corev1.ClaimBound:
		return nil
	}
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	class := &storagev1.StorageClass{}
	err := s.Client.Get(ctx, client.ObjectKey{Name: name}, class)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("get StorageClass %s: %w", name, err)
	case err == nil && ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer:
		return nil
	case err == nil || name == "":
		s.stateNotReady("is not bound yet, waiting for it")
	default:
		s.stateNotReady(fmt.Sprintf("is not bound, and there is no StorageClass %s that would provide a volume", name))
		s.RequeueAfter = classRetry
	}
	return nil
}

func (s *Scope) stateNotReady(what string) {
	s.Problem = &Problem{Reason: ReasonStateNotReady, Message: fmt.Sprintf(
		"PersistentVolumeClaim %s/%s for the TPM's and EFI's state %s", s.State.Namespace, s.State.Name, what)}
}

// stateVolumeStatus describes the claim under its own name, as KubeVirt does: the spec has no volume for it.
func stateVolumeStatus(s *Scope) []v1.VolumeStatus {
	if s.State == nil {
		return nil
	}
	return []v1.VolumeStatus{{Name: s.State.Name, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
		ClaimName: s.State.Name, AccessModes: s.State.Spec.AccessModes,
	}}}
}
