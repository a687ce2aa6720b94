// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	v1 "github.com/vireo-project/vireo/api/v1"
)

// maxUnthrottled is how many writes each intent of virt-controller may cause in spite of the limit of writes: one for
// each of the three stages that a record passes through, and as many attempts that fail because another component has
// written. A launcher can cause no more.
const maxUnthrottled = 6

// unthrottledReports counts the writes that report to virt-controller how far a freeze or a backup is. They are not
// delayed, since a guest stays frozen until virt-controller sees the next stage.
type unthrottledReports struct {
	freeze, backup intentReports
}

// intentReports counts the writes for one intent.
type intentReports struct {
	intent string
	writes int
}

// take reports whether a change of the status may be written without delay, and counts it.
func (u *unthrottledReports) take(before, after *v1.VirtualMachineInstanceStatus) bool {
	allowed := false
	if had, has := before.SnapshotFreezeRecord, after.SnapshotFreezeRecord; after.SnapshotFreeze != nil && has != nil &&
		(had == nil || had.ID != has.ID || had.Stage != has.Stage) {
		allowed = u.freeze.take(after.SnapshotFreeze.ID)
	}
	if had, has := before.DiskBackupRecord, after.DiskBackupRecord; after.DiskBackup != nil && has != nil &&
		(had == nil || had.ID != has.ID || had.Stage != has.Stage) {
		allowed = u.backup.take(after.DiskBackup.ID) || allowed
	}
	return allowed
}

func (r *intentReports) take(intent string) bool {
	if r.intent != intent {
		*r = intentReports{intent: intent}
	}
	r.writes++
	return r.writes <= maxUnthrottled
}
