// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/migration"
)

// MovesState says that a migration takes the machine's own state, of TPM and EFI, from one claim to another.
func MovesState(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m != nil && m.SourcePersistentStatePVCName != "" && m.TargetPersistentStatePVCName != "" &&
		m.SourcePersistentStatePVCName != m.TargetPersistentStatePVCName
}

// ReasonLostInMigration is status.reason of a VMI whose guest had left its node and, as far as anybody has told, never ran on the
// other one.
const ReasonLostInMigration = "LostInMigration"

// StateClaims are the claim that has the VM's state for good and the one that has not, as soon as that is certain: both are empty
// while the guest may still change hands, and where there is one claim for both sides. It is so certain because an owner never
// changes back, a migration that has failed hands nothing over, and neither does a VMI that has ended.
//
// Of a guest that had left without having arrived the target's claim counts: it was complete before the guest left, and whether the
// guest ran there, with nobody able to write that down, is not known.
func StateClaims(status *v1.VirtualMachineInstanceStatus) (keep, drop string) {
	m := status.MigrationState
	record, ok := MigrationRecord(status)
	switch {
	case !ok || !MovesState(m):
		return "", ""
	case record.Owner == migration.Target, record.Final && status.Reason == ReasonLostInMigration:
		return m.TargetPersistentStatePVCName, m.SourcePersistentStatePVCName
	case record.Failed || record.Final:
		return m.SourcePersistentStatePVCName, m.TargetPersistentStatePVCName
	default:
		return "", ""
	}
}

// moveState notes that the machine's state is in the target's claim.
func moveState(status *v1.VirtualMachineInstanceStatus) {
	m := status.MigrationState
	if !MovesState(m) {
		return
	}
	for i := range status.VolumeStatus {
		v := &status.VolumeStatus[i]
		if v.Name == m.SourcePersistentStatePVCName && v.PersistentVolumeClaimInfo != nil && v.PersistentVolumeClaimInfo.ClaimName == v.Name {
			v.Name, v.PersistentVolumeClaimInfo.ClaimName = m.TargetPersistentStatePVCName, m.TargetPersistentStatePVCName
		}
	}
}
