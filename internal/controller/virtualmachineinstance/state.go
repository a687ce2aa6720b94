// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/vmistatus"
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
	// classRetry is the pause between two searches for a storage class. Nothing tells when one comes.
	classRetry = 15 * time.Second
)

var (
	// errForeignClaim: a claim of the state's name.
	errForeignClaim = errors.New("belongs to somebody else: delete it, or give the VirtualMachine another name")
	// errTwoStates: somebody took a VMI away that was about to settle that.
	errTwoStates = errors.New("both say that they have the VM's state: delete the one that is not up to date")
)

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
	claim, err := s.findState(ctx)
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
	s.State, s.Config.StateClaim, s.Config.StateShared = claim, claim.Name, IsShared(claim)
	return s.awaitState(ctx)
}

// readStateOfPod reads the claim that the Pod was made with, for the status.
func (s *Scope) readStateOfPod(ctx context.Context) error {
	name := StateClaim(s.Pod)
	if name == "" {
		return nil
	}
	claim, err := claimOf(ctx, s.Client, s.VMI, name)
	s.State = claim
	return err
}

// StateClaim is the name of the claim with the machine's own state that a Pod uses, or empty.
func StateClaim(pod *corev1.Pod) string {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == launcherpod.StateVolume && v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// findState returns the claim whose label names this VM, or nil. One that belongs to nobody is taken as it is, as after
// a restore; one that belongs to an earlier VM of the name is about to go with it. The API server is asked: a cache may not show yet
// what somebody restored, and still show what the guest had before it moved.
func (s *Scope) findState(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	list := &corev1.PersistentVolumeClaimList{}
	err := s.Live.List(ctx, list, client.InNamespace(s.VMI.Namespace),
		client.MatchingLabels{v1.PersistentStateLabel: s.VMI.Name})
	if err != nil {
		return nil, fmt.Errorf("list the claims with the machine's state: %w", err)
	}
	var found *corev1.PersistentVolumeClaim
	var owned []*corev1.PersistentVolumeClaim
	for i := range list.Items {
		claim := &list.Items[i]
		owner := metav1.GetControllerOf(claim)
		switch {
		case claim.DeletionTimestamp != nil:
		case owner != nil && owner.UID == StateOwner(s.VMI).UID:
			owned = append(owned, claim)
		case owner == nil && found == nil:
			found = claim
		}
	}
	switch len(owned) {
	case 0:
		return found, nil
	case 1:
		return owned[0], nil
	default:
		return nil, fmt.Errorf("PersistentVolumeClaims %s and %s %w", owned[0].Name, owned[1].Name, errTwoStates)
	}
}

// StateOwner is the VM, with which the state goes, or the VMI itself if no VM made it.
func StateOwner(vmi *v1.VirtualMachineInstance) metav1.OwnerReference {
	if owner := vmistatus.MachineOf(vmi); owner != nil {
		return *owner
	}
	return *metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)
}

// StateName is the name of the claim that is made for a VMI on account of its owner, or of a migration. It follows from that, so
// that a stale cache cannot make a second claim, and so that a VM never gets the claim of an earlier one of its name.
func StateName(vmi *v1.VirtualMachineInstance, of types.UID) string {
	sum := sha256.Sum256([]byte(of))
	const suffix = 5 // characters, as many as names that the API server makes up get
	return v1.PersistentStateLabel + "-" + vmi.Name + "-" + hex.EncodeToString(sum[:])[:suffix]
}

// IsShared says that several nodes can use a claim at a time.
func IsShared(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
}

// createState makes the claim. Without a storage class it says so and returns nil.
func (s *Scope) createState(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	class, err := s.stateClass(ctx)
	if class == nil || err != nil {
		return nil, err
	}
	modes, err := s.stateAccess(ctx, class.Name)
	if err != nil {
		return nil, err
	}
	owner := StateOwner(s.VMI)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.VMI.Namespace, Name: StateName(s.VMI, owner.UID),
			Labels:          map[string]string{v1.PersistentStateLabel: s.VMI.Name, applyStorageProfile: "true"},
			OwnerReferences: []metav1.OwnerReference{owner},
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
