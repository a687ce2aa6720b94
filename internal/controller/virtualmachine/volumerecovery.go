// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// recoverVolumes finds out what an instance that has ended left in a VM whose volumes were to move: a start from the claims in the
// template would be one from disks that are empty, or old. Somebody has to say which ones count: by naming the claims that the
// volumes came from, or by taking the strategy Migration away.
func recoverVolumes(s *Scope) {
	moves := movesOf(&s.Status)
	if moves == nil || alive(s) {
		if moves == nil {
			removeCondition(&s.Status, v1.VirtualMachineManualRecoveryRequired)
		}
		return
	}
	if s.VM.Spec.Template == nil || s.arrived(moves) || cameBack(s.VM.Spec.Template, moves) || !s.choseMigration() {
		s.Status.VolumeUpdateState = nil
		removeCondition(&s.Status, v1.VirtualMachineManualRecoveryRequired)
		return
	}
	setCondition(&s.Status, v1.VirtualMachineCondition{
		Type: v1.VirtualMachineManualRecoveryRequired, Status: corev1.ConditionTrue, Reason: reasonLostMoving,
		Message:            "the disks are on the claims that the volumes were to move from: name those in spec.template.spec.volumes again to start from them",
		LastTransitionTime: metav1.NewTime(s.Now),
	})
}

// needsRecovery says that the VM must not start.
func (s *Scope) needsRecovery() bool {
	return findCondition(&s.Status, v1.VirtualMachineManualRecoveryRequired) != nil
}

func movesOf(status *v1.VirtualMachineStatus) []v1.StorageMigratedVolumeInfo {
	if status.VolumeUpdateState == nil || status.VolumeUpdateState.VolumeMigrationState == nil {
		return nil
	}
	return status.VolumeUpdateState.VolumeMigrationState.MigratedVolumes
}

// arrived says that the guest of an instance that has ended used the claims that its volumes moved to.
func (s *Scope) arrived(moves []v1.StorageMigratedVolumeInfo) bool {
	if s.VMI == nil || vmistatus.MovesVolumes(&s.VMI.Status) {
		return false
	}
	used := claimsOf(s.VMI.Spec.Volumes)
	for _, moved := range moves {
		if moved.DestinationPVCInfo == nil || used[moved.VolumeName] != moved.DestinationPVCInfo.ClaimName {
			return false
		}
	}
	return true
}

// cameBack says that a template names the claims that volumes were to move from, or no such volume.
func cameBack(template *v1.VirtualMachineInstanceTemplateSpec, moves []v1.StorageMigratedVolumeInfo) bool {
	named := claimsOf(template.Spec.Volumes)
	for _, moved := range moves {
		if claim := named[moved.VolumeName]; claim != "" && (moved.SourcePVCInfo == nil || claim != moved.SourcePVCInfo.ClaimName) {
			return false
		}
	}
	return true
}
