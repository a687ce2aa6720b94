// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// IsFinal says that nothing happens to the migration any more, as far as its phase tells.
func (m *VirtualMachineInstanceMigration) IsFinal() bool {
	return m.Status.Phase == MigrationSucceeded || m.Status.Phase == MigrationFailed
}

// IsQueued says that the migration waits for its turn, and has no Pod yet, as far as its phase tells.
func (m *VirtualMachineInstanceMigration) IsQueued() bool {
	return m.Status.Phase == MigrationPhaseUnset || m.Status.Phase == MigrationPending
}
