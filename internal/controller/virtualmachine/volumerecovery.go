// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// setManualRecovery sets the condition ManualRecoveryRequired, which blocks starts, if an instance ended before its
// volume migration did: the claims in the template may be empty or outdated. The user resolves it by naming the source
// claims in the template, or by removing the strategy Migration.
func setManualRecovery(s *Scope) {
	moves := movesOf(&s.Status)
	if moves == nil || alive(s) {
		if moves == nil {
			conditions.Remove(&s.Status.Conditions, v1.VirtualMachineManualRecoveryRequired)
		}
		return
	}
	if s.VM.Spec.Template == nil || s.usedDestinations(moves) || namesSources(s.VM.Spec.Template, moves) ||
		!s.wantsVolumeMigration() {
		s.Status.VolumeUpdateState = nil
		conditions.Remove(&s.Status.Conditions, v1.VirtualMachineManualRecoveryRequired)
		return
	}
	conditions.Set(&s.Status.Conditions, v1.VirtualMachineCondition{
		Type: v1.VirtualMachineManualRecoveryRequired, Status: corev1.ConditionTrue, Reason: reasonInstanceLost,
		Message: "the volume migration did not finish: set spec.template.spec.volumes back to the source claims, " +
			"then start the VM",
		LastTransitionTime: metav1.NewTime(s.Now),
	})
}

// needsRecovery reports whether the VM must not start.
func (s *Scope) needsRecovery() bool {
	return conditions.Find(s.Status.Conditions, v1.VirtualMachineManualRecoveryRequired) != nil
}

func movesOf(status *v1.VirtualMachineStatus) []v1.StorageMigratedVolumeInfo {
	if status.VolumeUpdateState == nil || status.VolumeUpdateState.VolumeMigrationState == nil {
		return nil
	}
	return status.VolumeUpdateState.VolumeMigrationState.MigratedVolumes
}

// usedDestinations reports whether the guest of an instance that has ended used the destination claims.
func (s *Scope) usedDestinations(moves []v1.StorageMigratedVolumeInfo) bool {
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

// namesSources reports whether a template names the source claims of the moved volumes, or none of these volumes.
func namesSources(template *v1.VirtualMachineInstanceTemplateSpec, moves []v1.StorageMigratedVolumeInfo) bool {
	named := claimsOf(template.Spec.Volumes)
	for _, moved := range moves {
		if claim := named[moved.VolumeName]; claim != "" &&
			(moved.SourcePVCInfo == nil || claim != moved.SourcePVCInfo.ClaimName) {
			return false
		}
	}
	return true
}
