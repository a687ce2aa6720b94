// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// IsFinal reports whether the migration has finished, by its phase.
func (m *VirtualMachineInstanceMigration) IsFinal() bool {
	return m.Status.Phase == MigrationSucceeded || m.Status.Phase == MigrationFailed
}

// IsQueued reports whether the migration is queued and has no Pod yet, by its phase.
func (m *VirtualMachineInstanceMigration) IsQueued() bool {
	return m.Status.Phase == MigrationPhaseUnset || m.Status.Phase == MigrationPending
}
