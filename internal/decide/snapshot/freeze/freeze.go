// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package freeze contains the decisions by which a guest's file systems are frozen while snapshots of its disks are
// taken, or while a backup of them begins: what virt-controller and the agent of the guest's node do next, given what
// each of them observes. ADR 0086 describes why a snapshot is never reported as consistent if it is not, and why no
// guest stays frozen. The same applies to backups. In this package, snapshots are also the copies of a backup.
//
// The functions are pure. The model in this package's tests calls the same functions while it enumerates crashes, stale
// reads, clocks that differ, and guests that thaw by themselves.
package freeze

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Intent is the freeze that virt-controller requests. It is in the VMI's status, and is only written with the resource
// version as a precondition.
type Intent struct {
	// ID identifies the freeze: the UID of the VirtualMachineSnapshot or the VirtualMachineBackup. A guest is frozen at
	// most once for it.
	ID string
	// Deadline is when the guest must be thawed at the latest.
	Deadline time.Time
	// End is set once and never changes after that.
	End End
}

// End is how an intent ends.
type End uint8

// How an intent ends.
const (
	// Open: it has not ended.
	Open End = iota
	// Release: as far as virt-controller knows, all copies were taken, or begun in the case of a backup, while the guest
	// was frozen. The guest is to be thawed, and the agent reports whether it was frozen until then.
	Release
	// Cancel: the guest is to be thawed. The copies, if there are any, are not consistent.
	Cancel
)

// Record is what the agent has done for an intent. It is in the metadata of the running domain, which exist exactly as
// long as the guest. The VMI's status contains a copy for virt-controller.
type Record struct {
	// ID is the intent's ID, or empty if there has been none.
	ID string
	// Deadline is the intent's deadline.
	Deadline time.Time
	// Stage is the stage of the freeze.
	Stage Stage
	// Kept reports whether the guest was frozen until it was released. It is valid in the stage Thawed.
	Kept bool
	// FrozenAt is when the freeze was requested from the guest, and ThawedAt when the guest was thawed, or observed to be.
	FrozenAt, ThawedAt time.Time
	// Problem explains to users why the freeze failed or did not last.
	Problem string
}

// Stage is the stage of a freeze. A freeze never returns to an earlier one.
type Stage uint8

// The stages.
const (
	// None: there has been no freeze.
	None Stage = iota
	// Requested: the guest may or may not be frozen.
	Requested
	// Frozen: it was frozen, and may have been thawed since.
	Frozen
	// Thawed: it was frozen, and is not any more.
	Thawed
	// Failed: it was never frozen.
	Failed
)

// Ended reports whether the agent has nothing more to do for the guest.
func (r Record) Ended() bool { return r.Stage == None || r.Stage == Thawed || r.Stage == Failed }

// Lasted returns for how long the guest was frozen; zero until it is thawed.
func (r Record) Lasted() time.Duration {
	if r.Stage != Thawed {
		return 0
	}
	return r.ThawedAt.Sub(r.FrozenAt)
}

// stages are the names of the stages in the VMI's status and in the domain's metadata.
var stages = map[Stage]v1.SnapshotFreezeStage{
	Requested: v1.SnapshotFreezeRequested,
	Frozen:    v1.SnapshotFreezeFrozen,
	Thawed:    v1.SnapshotFreezeThawed,
	Failed:    v1.SnapshotFreezeFailed,
}

// StageNamed returns the stage with this name, and false if there is none.
func StageNamed(name v1.SnapshotFreezeStage) (Stage, bool) {
	for stage, known := range stages {
		if known == name {
			return stage, true
		}
	}
	return None, false
}

// Name returns the stage's name, empty for None.
func (s Stage) Name() v1.SnapshotFreezeStage { return stages[s] }

// IntentOf returns the intent in a VMI's status, or nil if there is none. An unknown end cancels it.
func IntentOf(status *v1.VirtualMachineInstanceStatus) *Intent {
	f := status.SnapshotFreeze
	if f == nil || f.ID == "" {
		return nil
	}
	intent := &Intent{ID: f.ID, Deadline: f.Deadline.UTC(), End: Cancel}
	switch f.End {
	case v1.SnapshotFreezeOpen:
		intent.End = Open
	case v1.SnapshotFreezeRelease:
		intent.End = Release
	}
	return intent
}

// Status returns the intent in the format of the VMI's status, or nil for a nil intent.
func (i *Intent) Status() *v1.SnapshotFreeze {
	if i == nil {
		return nil
	}
	f := &v1.SnapshotFreeze{ID: i.ID, Deadline: *moment(i.Deadline)}
	switch i.End {
	case Release:
		f.End = v1.SnapshotFreezeRelease
	case Cancel:
		f.End = v1.SnapshotFreezeCancel
	}
	return f
}

// RecordOf returns the agent's record in a VMI's status. An unknown stage is None.
func RecordOf(status *v1.VirtualMachineInstanceStatus) Record {
	r := status.SnapshotFreezeRecord
	if r == nil {
		return Record{}
	}
	stage, _ := StageNamed(r.Stage)
	return Record{
		ID: r.ID, Deadline: r.Deadline.UTC(), Stage: stage, Kept: r.Kept, Problem: r.Problem,
		FrozenAt: utc(r.FrozenAt), ThawedAt: utc(r.ThawedAt),
	}
}

// Status returns the record in the format of the VMI's status, or nil if there has been no freeze.
func (r Record) Status() *v1.SnapshotFreezeRecord {
	if r.ID == "" || r.Stage == None {
		return nil
	}
	return &v1.SnapshotFreezeRecord{
		ID: r.ID, Deadline: *moment(r.Deadline), Stage: r.Stage.Name(), Kept: r.Kept, Problem: r.Problem,
		FrozenAt: optional(r.FrozenAt), ThawedAt: optional(r.ThawedAt),
	}
}

// Remaining returns for how long at most a migration of the guest has to wait for a freeze; zero if it need not wait.
// After the deadline, the migration does not wait for a guest that does not respond: no snapshot relies on the freeze
// any more, and the target's agent continues from the domain's metadata.
func Remaining(status *v1.VirtualMachineInstanceStatus, now time.Time) time.Duration {
	intent, record := IntentOf(status), RecordOf(status)
	switch {
	case intent == nil,
		record.ID == intent.ID && record.Ended(),
		record.ID != intent.ID && intent.End != Open:
		return 0
	default:
		return max(intent.Deadline.Sub(now), 0)
	}
}

// moment returns a time with the precision that JSON keeps, so that equal times compare as equal.
func moment(t time.Time) *metav1.Time {
	rounded := metav1.NewTime(t).Rfc3339Copy()
	return &rounded
}

func optional(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return moment(t)
}

func utc(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
