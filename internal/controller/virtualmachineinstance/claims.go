// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// ReasonPVCNotFound is the reason while a claim is missing or has lost its volume. KubeVirt's name.
const ReasonPVCNotFound = "FailedPvcNotFound"

// ClaimNames are the names of the claims of a VMI's volumes.
func ClaimNames(vmi *v1.VirtualMachineInstance) []string {
	var names []string
	for i := range vmi.Spec.Volumes {
		if name := podspec.ClaimName(&vmi.Spec.Volumes[i]); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// readClaims reads the claims of a VMI that has no node yet. A missing claim is waited for, and so is one that lost
// its volume. One that is not bound is not: binding may need a Pod that wants it.
func readClaims(ctx context.Context, s *Scope) error {
	if !s.preparing() {
		return nil
	}
	s.Claims = map[string]*corev1.PersistentVolumeClaim{}
	s.Config.Claims = map[string]podspec.Claim{}
	return s.eachClaim(ctx, func(volume *v1.Volume, claim *corev1.PersistentVolumeClaim) error {
		imports := len(s.imports)
		if err := s.awaitImport(ctx, volume, claim); err != nil {
			return err
		}
		switch {
		case claim == nil && len(s.imports) > imports:
			s.importing = true // The importer is about to make it.
			return nil
		case claim == nil:
			s.missingClaim("PersistentVolumeClaim %s/%s of volume %s does not exist, waiting for it%s",
				s.VMI.Namespace, podspec.ClaimName(volume), volume.Name, s.hint(volume))
			return nil
		case claim.Status.Phase == corev1.ClaimLost:
			s.missingClaim("PersistentVolumeClaim %s/%s of volume %s has lost its PersistentVolume",
				s.VMI.Namespace, claim.Name, volume.Name)
		}
		s.Claims[volume.Name] = claim
		s.Config.Claims[volume.Name] = podspec.Claim{Block: IsBlock(claim)}
		return nil
	})
}

// eachClaim calls visit with each of the VMI's volumes that is a claim, and with the claim, which is nil if there is none. It ends with
// the first error.
func (s *Scope) eachClaim(ctx context.Context, visit func(*v1.Volume, *corev1.PersistentVolumeClaim) error) error {
	for i := range s.VMI.Spec.Volumes {
		volume := &s.VMI.Spec.Volumes[i]
		name := podspec.ClaimName(volume)
		if name == "" {
			continue
		}
		claim, err := s.claim(ctx, name)
		if err != nil {
			return err
		}
		if err := visit(volume, claim); err != nil {
			return err
		}
	}
	return nil
}

// claim reads a claim; nil means that there is none.
func (s *Scope) claim(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{}
	err := s.Client.Get(ctx, client.ObjectKey{Namespace: s.VMI.Namespace, Name: name}, claim)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get PersistentVolumeClaim %s/%s: %w", s.VMI.Namespace, name, err)
	}
	return claim, nil
}

// missingClaim keeps the first problem: the others show once it is solved.
func (s *Scope) missingClaim(format string, args ...any) {
	if s.Problem == nil {
		s.Problem = &Problem{Reason: ReasonPVCNotFound, Message: fmt.Sprintf(format, args...), Unschedulable: true}
	}
}

// IsBlock says that a claim is a block device and not a file system.
func IsBlock(claim *corev1.PersistentVolumeClaim) bool {
	return ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
}

// Ends of the annotations by which an importer or a user says that a claim's space is to stay allocated. What is before
// them, such as cdi.kubevirt.io, does not matter. Source: kubevirt/kubevirt pkg/storage/types, IsPreallocated.
const (
	preallocationAnnotation    = "/storage.preallocation"
	thickProvisionedAnnotation = "/storage.thick-provisioned"
)

func isPreallocated(annotations map[string]string) bool {
	for key, value := range annotations {
		said := strings.Contains(key, preallocationAnnotation) || strings.Contains(key, thickProvisionedAnnotation)
		if said && value == "true" {
			return true
		}
	}
	return false
}

// refreshClaims reads claims from the API server whose capacity the cache does not show though a Pod uses them: the
// agent sizes disks by it.
func refreshClaims(ctx context.Context, s *Scope) error {
	for volume, claim := range s.Claims {
		if len(claim.Status.Capacity) > 0 {
			continue
		}
		fresh := &corev1.PersistentVolumeClaim{}
		if err := s.Live.Get(ctx, client.ObjectKeyFromObject(claim), fresh); err != nil {
			return fmt.Errorf("get PersistentVolumeClaim %s: %w", client.ObjectKeyFromObject(claim), err)
		}
		s.Claims[volume] = fresh
	}
	return s.readOverheads(ctx)
}

// volumeStatus describes the claim with the machine's state and those of the VMI's volumes, in the volumes' order.
func volumeStatus(s *Scope) []v1.VolumeStatus {
	out := stateVolumeStatus(s)
	for i := range s.VMI.Spec.Volumes {
		name := s.VMI.Spec.Volumes[i].Name
		claim := s.Claims[name]
		if claim == nil {
			continue
		}
		out = append(out, v1.VolumeStatus{Name: name, PersistentVolumeClaimInfo: ClaimInfo(claim, s.overheads)})
	}
	return out
}

// ClaimInfo describes a claim as the status of a VMI does.
func ClaimInfo(claim *corev1.PersistentVolumeClaim, overheads Overheads) *v1.PersistentVolumeClaimInfo {
	return &v1.PersistentVolumeClaimInfo{
		ClaimName:          claim.Name,
		AccessModes:        claim.Spec.AccessModes,
		VolumeMode:         ptr.To(ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)),
		Capacity:           claim.Status.Capacity,
		Requests:           claim.Spec.Resources.Requests,
		Preallocated:       isPreallocated(claim.Annotations),
		FilesystemOverhead: ptr.To(overheads.of(claim)),
	}
}

// followClaims reads the claims of a live guest: its disks grow with them.
func followClaims(ctx context.Context, s *Scope) error {
	if s.stage() != vmistatus.Live || s.deleting() {
		return nil
	}
	s.followed = map[string]*corev1.PersistentVolumeClaim{}
	return s.eachClaim(ctx, func(volume *v1.Volume, claim *corev1.PersistentVolumeClaim) error {
		if claim != nil {
			s.followed[volume.Name] = claim
		}
		return nil
	})
}

// setClaims says how large a live guest's claims are. A volume that moves to another claim uses the one that the status names until it has done so,
// and a claim of which the cache does not know the capacity yet is left as it was described at the hand-over.
func setClaims(s *Scope, status *v1.VirtualMachineInstanceStatus) {
	for i := range status.VolumeStatus {
		info, claim := status.VolumeStatus[i].PersistentVolumeClaimInfo, s.followed[status.VolumeStatus[i].Name]
		if info == nil || claim == nil || claim.Name != info.ClaimName || len(claim.Status.Capacity) == 0 {
			continue
		}
		if !equality.Semantic.DeepEqual(info.Capacity, claim.Status.Capacity) {
			info.Capacity = claim.Status.Capacity
		}
		if !equality.Semantic.DeepEqual(info.Requests, claim.Spec.Resources.Requests) {
			info.Requests = claim.Spec.Resources.Requests
		}
	}
}
