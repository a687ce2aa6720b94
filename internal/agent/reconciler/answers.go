// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	v1 "github.com/vireo-project/vireo/api/v1"
)

// maxAnswers is how many writes each intent of virt-controller may cause in spite of the limit of writes: one for each of the three stages
// that a record passes through, and as many attempts that fail because another component has written. A launcher can cause no more.
const maxAnswers = 6

// answers counts the writes that report to virt-controller how far a freeze or a backup is. They are not delayed, since a guest stays
// frozen until virt-controller sees the next stage.
type answers struct {
	freeze, backup answer
}

// answer counts the writes for one intent.
type answer struct {
	intent string
	writes int
}

// allow reports whether a change of the status is an answer that may be written without delay, and counts it.
func (a *answers) allow(before, after *v1.VirtualMachineInstanceStatus) bool {
	allowed := false
	if had, has := before.SnapshotFreezeRecord, after.SnapshotFreezeRecord; after.SnapshotFreeze != nil && has != nil &&
		(had == nil || had.ID != has.ID || had.Stage != has.Stage) {
		allowed = a.freeze.allow(after.SnapshotFreeze.ID)
	}
	if had, has := before.DiskBackupRecord, after.DiskBackupRecord; after.DiskBackup != nil && has != nil &&
		(had == nil || had.ID != has.ID || had.Stage != has.Stage) {
		allowed = a.backup.allow(after.DiskBackup.ID) || allowed
	}
	return allowed
}

func (a *answer) allow(intent string) bool {
	if a.intent != intent {
		*a = answer{intent: intent}
	}
	a.writes++
	return a.writes <= maxAnswers
}
