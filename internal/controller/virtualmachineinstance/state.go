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

	"github.com/vireo-project/vireo/api/snapshot"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/kit"
	"github.com/vireo-project/vireo/internal/outcome"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Reasons of events and of the condition Synchronized about the state claim, which has the state of TPM and EFI.
// KubeVirt's names.
const (
	ReasonStateCreateFailed = "FailedBackendStorageCreate"
	ReasonStateNotReady     = "BackendStorageNotReady"
)

// ReasonStateUnused is the reason of an event about a claim that a VM does not use although its label names the VM.
const ReasonStateUnused = "BackendStorageUnused"

const (
	// stateSize is the size of the state claim. KubeVirt's value.
	stateSize = "10Mi"
	// applyStorageProfile lets the importer raise the size to the least that the storage supports.
	// Source: kubevirt/kubevirt pkg/storage/backend-storage, LabelApplyStorageProfile.
	applyStorageProfile = "cdi.kubevirt.io/applyStorageProfile"
	// classRetry is the interval between two reads of a missing storage class. Storage classes trigger no reconciliation.
	classRetry = 15 * time.Second
)

var (
	// errForeignClaim is the problem of a claim with the name of the state claim.
	errForeignClaim = errors.New("belongs to another owner: delete it, or give the VirtualMachine another name")
	// errTwoStates is possible if a VMI was removed by force before settleStateClaims, or if claims were restored or
	// copied.
	errTwoStates = errors.New("both have the persistent state of this VM: delete the one that you do not need")
)

// ensureStateClaim finds the state claim, and creates it before the Pod that needs it. The claim outlives the VMI: the
// VM owns it.
func (s *scope) ensureStateClaim(ctx context.Context) error {
	if !s.preparing() || !s.vmi.Spec.HasPersistentState() {
		return nil
	}
	if s.pod != nil {
		return s.readStateClaimOfPod(ctx)
	}
	if s.problem != nil || s.final != nil {
		return nil // The VMI cannot start: no claim is created for it.
	}
	claim, err := s.findStateClaim(ctx)
	if claim == nil && err == nil {
		claim, err = s.labelUnlabeledState(ctx)
	}
	if claim == nil && err == nil {
		claim, err = s.createStateClaim(ctx)
	}
	if err != nil {
		s.problem = &problem{reason: ReasonStateCreateFailed, message: err.Error()}
		return err
	}
	if claim == nil {
		return nil // createStateClaim has set the problem.
	}
	s.stateClaim, s.podConfig.StateClaim, s.podConfig.StateShared = claim, claim.Name, IsShared(claim)
	return s.awaitStateClaim(ctx)
}

// readStateClaimOfPod reads the state claim that the Pod uses, for the status.
func (s *scope) readStateClaimOfPod(ctx context.Context) error {
	name := podspec.StateClaim(s.pod)
	if name == "" {
		return nil
	}
	claim, err := readClaim(ctx, s.client, s.vmi.Namespace, name)
	if err != nil || claim == nil {
		return err
	}
	s.stateClaim = claim
	return s.adoptStateClaim(ctx)
}

// adoptStateClaim makes the VM the owner of the claim that its Pod uses if the claim has no owner, as after a restore
// by another tool. Otherwise it would outlive the VM, and a later VM of the name would get this one's TPM.
func (s *scope) adoptStateClaim(ctx context.Context) error {
	owner := vmistatus.VMOf(s.vmi)
	if owner == nil || !isAbandoned(s.stateClaim, s.vmi) {
		return nil
	}
	// The garbage collector would delete a claim whose owner is gone. With the VM, the claim of a stale VMI would be lost.
	vm, err := kit.Read(ctx, client.ObjectKeyFromObject(s.vmi), &v1.VirtualMachine{}, s.apiReader)
	if err != nil || vm == nil || vm.UID != owner.UID || vm.DeletionTimestamp != nil {
		return err
	}
	err = kit.Patch(ctx, s.client, &s.stateClaim, func(claim *corev1.PersistentVolumeClaim) {
		claim.OwnerReferences = []metav1.OwnerReference{*owner}
	})
	if err != nil {
		return fmt.Errorf("make the VirtualMachine the owner of its state: %w", err)
	}
	return nil
}

// isAbandoned reports whether a claim has the state of this VM and has no owner. One that a VirtualMachineRestore has
// left without an owner does not: its volumeOwnershipPolicy is None.
func isAbandoned(claim *corev1.PersistentVolumeClaim, vmi *v1.VirtualMachineInstance) bool {
	return hasState(claim, vmi) && len(claim.OwnerReferences) == 0 && claim.DeletionTimestamp == nil &&
		claim.Annotations[snapshot.RestoreNameAnnotation] == ""
}

// findStateClaim returns the claim whose label has this VM's name, or nil: the VM's own, or else one without an owner,
// as after a restore; one of an earlier VM of the name is about to be deleted with it. It reads from the API server:
// the cache may lack a restored claim, and may have the one from before a migration.
func (s *scope) findStateClaim(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	var owned, ownerless []*metav1.PartialObjectMetadata
	err := kit.EachMetadata(ctx, s.apiReader, corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), s.vmi.Namespace,
		func(claim *metav1.PartialObjectMetadata) {
			owner := metav1.GetControllerOf(claim)
			switch {
			case claim.DeletionTimestamp != nil:
			case owner != nil && owner.UID == StateOwner(s.vmi).UID:
				owned = appendNamed(owned, claim)
			case owner == nil:
				ownerless = appendNamed(ownerless, claim)
			}
		}, client.MatchingLabels{v1.PersistentStateLabel: podspec.LabelValue(s.vmi.Name)})
	if err != nil {
		return nil, fmt.Errorf("find the claim with the guest's persistent state: %w", err)
	}
	s.unusedStates = nil
	candidates := ownerless
	if len(owned) > 0 {
		candidates, s.unusedStates = owned, ownerless
	}
	switch len(candidates) {
	case 0:
		return nil, nil
	case 1:
		return kit.Read(ctx, client.ObjectKeyFromObject(candidates[0]), &corev1.PersistentVolumeClaim{}, s.apiReader)
	default:
		first, second := describeStateClaim(candidates[0]), describeStateClaim(candidates[1])
		return nil, fmt.Errorf("PersistentVolumeClaims %s and %s %w", first, second, errTwoStates)
	}
}

// labelUnlabeledState returns the claim of a VM that an early KubeVirt has started, or nil: it has a fixed name and no
// label. It labels the claim, so that it is found like others from then on.
// Source: kubevirt/kubevirt pkg/storage/backend-storage, the legacy name of the claim.
func (s *scope) labelUnlabeledState(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	key := client.ObjectKey{Namespace: s.vmi.Namespace, Name: v1.PersistentStateLabel + "-" + s.vmi.Name}
	claim, err := kit.Read(ctx, key, &corev1.PersistentVolumeClaim{}, s.apiReader)
	if err != nil || claim == nil || claim.DeletionTimestamp != nil || claim.Labels[v1.PersistentStateLabel] != "" {
		return nil, err
	}
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.UID != StateOwner(s.vmi).UID {
		return nil, nil
	}
	err = kit.Patch(ctx, s.client, &claim, func(claim *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataLabel(&claim.ObjectMeta, v1.PersistentStateLabel, podspec.LabelValue(s.vmi.Name))
	})
	if err != nil {
		return nil, fmt.Errorf("label the claim with the guest's persistent state: %w", err)
	}
	return claim, nil
}

// maxNamed is how many claims are named to the user: a tenant may give the label to any number.
const maxNamed = 10

// appendNamed appends what describeStateClaim needs of a claim.
func appendNamed(
	claims []*metav1.PartialObjectMetadata, claim *metav1.PartialObjectMetadata,
) []*metav1.PartialObjectMetadata {
	if len(claims) == maxNamed {
		return claims
	}
	return append(claims, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: claim.Namespace, Name: claim.Name, CreationTimestamp: claim.CreationTimestamp,
	}})
}

// warnOfUnusedState reports that a claim without an owner is not used because the VM has one of its own: a backup tool
// may have restored it after the VM had started with an empty state.
func (s *scope) warnOfUnusedState() {
	for _, claim := range s.unusedStates {
		s.event(corev1.EventTypeWarning, ReasonStateUnused, actionCreateState,
			"PersistentVolumeClaim %s with persistent state of this VM is not "+
				"used, because the VM has %s: delete the one that you do not need while the VM is stopped",
			describeStateClaim(claim),
			describeStateClaim(s.stateClaim))
	}
}

// describeStateClaim returns the claim's name and what helps a user to choose between two.
func describeStateClaim(claim metav1.Object) string {
	return fmt.Sprintf("%s (created %s)", claim.GetName(), claim.GetCreationTimestamp().UTC().Format(time.RFC3339))
}

// StateOwner is the owner of the state claim: the VM, or the VMI itself if it has none.
func StateOwner(vmi *v1.VirtualMachineInstance) metav1.OwnerReference {
	if owner := vmistatus.VMOf(vmi); owner != nil {
		return *owner
	}
	return *metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)
}

// StateName is the name of the claim that is created for a VMI, by the UID of its owner or of a migration. It is a
// function of these, so that a stale cache cannot lead to a second claim, and a VM never gets the claim of an earlier
// VM of its name.
func StateName(vmi *v1.VirtualMachineInstance, of types.UID) string {
	sum := sha256.Sum256([]byte(of))
	const suffix = 5 // characters, as many as generateName adds
	return v1.PersistentStateLabel + "-" + vmi.Name + "-" + hex.EncodeToString(sum[:])[:suffix]
}

// IsShared reports whether Pods on several nodes can use a claim at the same time.
func IsShared(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
}

// createStateClaim creates the claim. Without a storage class it sets the problem and returns nil.
func (s *scope) createStateClaim(ctx context.Context) (*corev1.PersistentVolumeClaim, error) {
	class, err := s.stateClass(ctx)
	if class == nil || err != nil {
		return nil, err
	}
	modes, err := s.stateAccess(ctx, class.Name)
	if err != nil {
		return nil, err
	}
	owner := StateOwner(s.vmi)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.vmi.Namespace, Name: StateName(s.vmi, owner.UID),
			Labels: map[string]string{v1.PersistentStateLabel: podspec.LabelValue(s.vmi.Name),
				applyStorageProfile: "true"},
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
	err = s.client.Create(ctx, claim)
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

// explainTaken returns why an existing claim with the name of the state claim is not used.
func (s *scope) explainTaken(ctx context.Context, key client.ObjectKey) error {
	claim := &corev1.PersistentVolumeClaim{}
	if err := s.apiReader.Get(ctx, key, claim); err != nil {
		return fmt.Errorf("get PersistentVolumeClaim %s, which exists: %w", key, err)
	}
	if claim.DeletionTimestamp != nil {
		return fmt.Errorf("PersistentVolumeClaim %s is being deleted, waiting until it is gone", key)
	}
	return fmt.Errorf("PersistentVolumeClaim %s %w", key, errForeignClaim)
}

// awaitStateClaim sets the problem until the claim is bound. It does not wait for a claim of the binding mode
// WaitForFirstConsumer: the launcher Pod is the first consumer.
func (s *scope) awaitStateClaim(ctx context.Context) error {
	claim := s.stateClaim
	switch {
	case vmistatus.IsBlockClaim(claim):
		s.stateClaimNotReady("is a block device: it must be a file system")
		return nil
	case claim.Status.Phase == corev1.ClaimLost:
		s.stateClaimNotReady("has lost its PersistentVolume")
		return nil
	case claim.Status.Phase == corev1.ClaimBound:
		return nil
	}
	name := ptr.Deref(claim.Spec.StorageClassName, "")
	class := &storagev1.StorageClass{}
	err := s.client.Get(ctx, client.ObjectKey{Name: name}, class)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("get StorageClass %s: %w", name, err)
	case err == nil && ptr.Deref(class.VolumeBindingMode,
		storagev1.VolumeBindingImmediate) == storagev1.VolumeBindingWaitForFirstConsumer:
		return nil
	case err == nil || name == "":
		s.stateClaimNotReady("is not bound yet, waiting for it")
	default:
		s.stateClaimNotReady(fmt.Sprintf("is not bound, and there is no StorageClass %s that would provide a volume", name))
		s.requeueAfter = outcome.Sooner(s.requeueAfter, classRetry)
	}
	return nil
}

func (s *scope) stateClaimNotReady(what string) {
	s.problem = &problem{reason: ReasonStateNotReady, message: fmt.Sprintf(
		"PersistentVolumeClaim %s/%s for the TPM's and EFI's state %s", s.stateClaim.Namespace, s.stateClaim.Name, what)}
}

// stateVolumeStatus describes the state claim under its own name, as KubeVirt does: it is no volume of the spec.
func stateVolumeStatus(o *observed) []v1.VolumeStatus {
	if o.stateClaim == nil {
		return nil
	}
	return []v1.VolumeStatus{{Name: o.stateClaim.Name, PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
		ClaimName: o.stateClaim.Name, AccessModes: o.stateClaim.Spec.AccessModes,
	}}}
}
