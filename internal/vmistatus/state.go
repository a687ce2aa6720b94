// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/migration/protocol"
)

// MovesState reports whether a migration moves the state of TPM and EFI from one claim to another.
func MovesState(m *v1.VirtualMachineInstanceMigrationState) bool {
	return m != nil && m.SourcePersistentStatePVCName != "" && m.TargetPersistentStatePVCName != "" &&
		m.SourcePersistentStatePVCName != m.TargetPersistentStatePVCName
}

// ReasonLostInMigration is status.reason of a VMI whose guest the source had released and that, as far as is known, never
// ran on the target.
const ReasonLostInMigration = "LostInMigration"

// StateClaims returns the claim that has the VM's state for good and the one that does not, once that is certain. Both are
// empty while ownership of the guest may still be transferred, and if there is one claim for both sides. It is certain as
// soon as the target owns the guest, the migration has failed or the VMI has ended: none of these is ever undone.
//
// If the guest was lost in migration, the target's claim is kept: it was complete before the source released the guest, and
// the guest may have run on the target without a record of it.
func StateClaims(status *v1.VirtualMachineInstanceStatus) (keep, drop string) {
	m := status.MigrationState
	record, ok := MigrationRecord(status)
	switch {
	case !ok || !MovesState(m):
		return "", ""
	case record.Owner == protocol.Target, record.Final && status.Reason == ReasonLostInMigration:
		return m.TargetPersistentStatePVCName, m.SourcePersistentStatePVCName
	case record.Failed || record.Final:
		return m.SourcePersistentStatePVCName, m.TargetPersistentStatePVCName
	default:
		return "", ""
	}
}

// moveState records that the state of TPM and EFI is in the target's claim.
func moveState(status *v1.VirtualMachineInstanceStatus) {
	m := status.MigrationState
	if !MovesState(m) {
		return
	}
	for i := range status.VolumeStatus {
		v := &status.VolumeStatus[i]
		claim := v.PersistentVolumeClaimInfo
		if v.Name == m.SourcePersistentStatePVCName && claim != nil && claim.ClaimName == v.Name {
			v.Name, claim.ClaimName = m.TargetPersistentStatePVCName, m.TargetPersistentStatePVCName
		}
	}
}
