// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Volumes migrate to other claims while their guest runs in these steps, each of which is one write:
//
//  1. status.migratedVolumes names the claims from which and to which they migrate,
//  2. spec.volumes names the new claims,
//  3. a migration transfers the disks, and TransferOwnership or TakeOwnership empties status.migratedVolumes as it changes the owner.
//
// So as long as the list is not empty the guest uses the old claims, whatever the spec has. A change is reverted in the same
// order: first the spec, then the list, and neither during a migration.

// IsBlockClaim reports whether a claim is a block device and not a file system.
func IsBlockClaim(claim *corev1.PersistentVolumeClaim) bool {
	return ptr.Deref(claim.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock
}

// IsBlock is IsBlockClaim for what a volume's status has of its claim.
func IsBlock(claim *v1.PersistentVolumeClaimInfo) bool {
	return claim != nil && claim.VolumeMode != nil && *claim.VolumeMode == corev1.PersistentVolumeBlock
}

// ClaimBytes returns the size of the disk on a claim: the smaller of capacity and request, as in KubeVirt, so that the disk can be restored
// to another volume of the requested size. A claim that is not bound has no capacity yet. 0 means that the claim has neither.
func ClaimBytes(capacity, requests corev1.ResourceList) int64 {
	size := capacity.Storage().Value()
	if request := requests.Storage().Value(); request > 0 && (size == 0 || request < size) {
		return request
	}
	return size
}

// MovesVolumes reports whether volumes of the guest are to migrate to other claims and have not done so.
func MovesVolumes(status *v1.VirtualMachineInstanceStatus) bool {
	return len(status.MigratedVolumes) > 0
}

// Migrated returns how a volume is to migrate, or nil if it is not.
func Migrated(status *v1.VirtualMachineInstanceStatus, volume string) *v1.StorageMigratedVolumeInfo {
	for i := range status.MigratedVolumes {
		if status.MigratedVolumes[i].VolumeName == volume {
			return &status.MigratedVolumes[i]
		}
	}
	return nil
}

// NamesDestinations reports whether the spec names the new claim of each volume that is to migrate. Between the first two
// steps it does not, and the target's Pod would be rendered with the old claims.
func NamesDestinations(vmi *v1.VirtualMachineInstance) bool {
	named := 0
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		moved := Migrated(&vmi.Status, v.Name)
		if moved == nil {
			continue
		}
		if moved.DestinationPVCInfo == nil || moved.DestinationPVCInfo.ClaimName != v.WrittenClaim() {
			return false
		}
		named++
	}
	return named == len(vmi.Status.MigratedVolumes)
}

// Migratability returns the condition by which the guest can migrate or not, or nil if that is not known: LiveMigratable,
// or StorageLiveMigratable while its volumes are to migrate.
func Migratability(status *v1.VirtualMachineInstanceStatus) *v1.VirtualMachineInstanceCondition {
	if MovesVolumes(status) {
		return FindCondition(status, v1.VirtualMachineInstanceIsStorageLiveMigratable)
	}
	return FindCondition(status, v1.VirtualMachineInstanceIsMigratable)
}

// settleVolumes records that the guest uses the new claims of its volumes.
func settleVolumes(status *v1.VirtualMachineInstanceStatus) {
	if !MovesVolumes(status) {
		return
	}
	for i := range status.VolumeStatus {
		if moved := Migrated(status, status.VolumeStatus[i].Name); moved != nil {
			status.VolumeStatus[i].PersistentVolumeClaimInfo = moved.DestinationPVCInfo
		}
	}
	status.MigratedVolumes = nil
	RemoveCondition(status, v1.VirtualMachineInstanceVolumesChange)
}
