// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// A guest moves to other claims while it runs in these steps, each of which is one write:
//
//  1. status.migratedVolumes says from which claims to which,
//  2. spec.volumes names the new ones,
//  3. a migration copies the disks, and HandOver empties status.migratedVolumes together with the change of the owner.
//
// So as long as the list is not empty the guest uses the claims that it comes from, whatever the spec says. A change that is
// taken back goes the same way: first the spec, then the list, and neither while a migration is on its way.

// IsBlock says that a claim is a block device and not a file system.
func IsBlock(claim *v1.PersistentVolumeClaimInfo) bool {
	return claim != nil && claim.VolumeMode != nil && *claim.VolumeMode == corev1.PersistentVolumeBlock
}

// MovesVolumes says that the guest is to move to other claims and has not done so.
func MovesVolumes(status *v1.VirtualMachineInstanceStatus) bool {
	return len(status.MigratedVolumes) > 0
}

// Migrated is how a volume moves, or nil if it does not.
func Migrated(status *v1.VirtualMachineInstanceStatus, volume string) *v1.StorageMigratedVolumeInfo {
	for i := range status.MigratedVolumes {
		if status.MigratedVolumes[i].VolumeName == volume {
			return &status.MigratedVolumes[i]
		}
	}
	return nil
}

// NamesDestinations says that the spec names the claim that each volume moves to, if any does. In between two writes it does not,
// and a Pod of that spec would not be the one that the guest goes to.
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

// Migratability is the condition that says whether the guest can move, or nil if nothing is known: LiveMigratable, or
// StorageLiveMigratable while its volumes are to move along.
func Migratability(status *v1.VirtualMachineInstanceStatus) *v1.VirtualMachineInstanceCondition {
	if MovesVolumes(status) {
		return FindCondition(status, v1.VirtualMachineInstanceIsStorageLiveMigratable)
	}
	return FindCondition(status, v1.VirtualMachineInstanceIsMigratable)
}

// settleVolumes notes that the guest uses the claims that its volumes were to move to.
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

// checkVolumes judges a change of the list of volumes: what is said about their claims has a writer of its own.
func checkVolumes(w Writer, stage Stage, before, after []v1.VolumeStatus) ([]string, error) {
	var changed []string
	for _, part := range []struct {
		field  string
		owners owners
		of     func([]v1.VolumeStatus) []v1.VolumeStatus
	}{{volumesField, fieldOwners[volumesField], withoutClaims}, {claimsField, claimOwners, onlyClaims}} {
		if equality.Semantic.DeepEqual(part.of(before), part.of(after)) {
			continue
		}
		if err := mayWrite(w, stage, "status."+part.field, part.owners); err != nil {
			return nil, err
		}
		changed = append(changed, part.field)
	}
	return changed, nil
}

func withoutClaims(list []v1.VolumeStatus) []v1.VolumeStatus {
	out := make([]v1.VolumeStatus, len(list))
	for i := range list {
		out[i] = list[i]
		out[i].PersistentVolumeClaimInfo = nil
	}
	return out
}

// onlyClaims are the volumes with a claim, in the order of the list.
func onlyClaims(list []v1.VolumeStatus) []v1.VolumeStatus {
	var out []v1.VolumeStatus
	for i := range list {
		if claim := list[i].PersistentVolumeClaimInfo; claim != nil {
			out = append(out, v1.VolumeStatus{Name: list[i].Name, PersistentVolumeClaimInfo: claim})
		}
	}
	return out
}
