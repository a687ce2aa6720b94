// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// stages are the names of the stages in the VMI's status and in the domain's metadata.
var stages = map[Stage]v1.DiskBackupStage{
	Requested: v1.DiskBackupRequested,
	Running:   v1.DiskBackupRunning,
	Succeeded: v1.DiskBackupSucceeded,
	Failed:    v1.DiskBackupFailed,
}

// StageNamed returns the stage with this name, and false if there is none.
func StageNamed(name v1.DiskBackupStage) (Stage, bool) {
	for stage, known := range stages {
		if known == name {
			return stage, true
		}
	}
	return None, false
}

// Name returns the stage's name, empty for None.
func (s Stage) Name() v1.DiskBackupStage { return stages[s] }

// IntentOf returns the intent in a VMI's status, or nil if there is none.
func IntentOf(status *v1.VirtualMachineInstanceStatus) *Intent {
	b := status.DiskBackup
	if b == nil || b.ID == "" {
		return nil
	}
	i := &Intent{
		ID: b.ID, UtilityVolume: b.UtilityVolume, Directory: b.Directory, FilePrefix: b.FilePrefix, Volumes: slices.Clone(b.Volumes),
		Checkpoint: b.Checkpoint, Since: b.Since, Kept: slices.Clone(b.KeptCheckpoints), Canceled: b.Canceled,
	}
	if p := b.Pull; p != nil {
		i.Pull, i.Exporter = true, Exporter{IP: p.PodIP, Port: p.Port, ServerName: p.ServerName, UID: p.PodUID}
	}
	return i
}

// Status returns the intent in the format of the VMI's status, or nil for a nil intent.
func (i *Intent) Status() *v1.DiskBackup {
	if i == nil {
		return nil
	}
	status := &v1.DiskBackup{
		ID: i.ID, UtilityVolume: i.UtilityVolume, Directory: i.Directory, FilePrefix: i.FilePrefix, Volumes: slices.Clone(i.Volumes),
		Checkpoint: i.Checkpoint, Since: i.Since, KeptCheckpoints: slices.Clone(i.Kept), Canceled: i.Canceled,
	}
	if e := i.Exporter; i.Pull {
		status.Pull = &v1.DiskBackupPull{PodIP: e.IP, Port: e.Port, ServerName: e.ServerName, PodUID: e.UID}
	}
	return status
}

// RecordOf returns the agent's record in a VMI's status. An unknown stage is None.
func RecordOf(status *v1.VirtualMachineInstanceStatus) Record {
	r := status.DiskBackupRecord
	if r == nil {
		return Record{}
	}
	stage, _ := StageNamed(r.Stage)
	return Record{
		ID: r.ID, Stage: stage, Problem: r.Problem, StartedAt: utc(r.StartedAt), EndedAt: utc(r.EndedAt),
		Checkpoint: r.Checkpoint, Since: r.Since, FullBecause: r.FullBecause, Pull: r.Pull, Canceled: r.Canceled,
	}
}

// Status returns the record in the format of the VMI's status, or nil if there has been no backup.
func (r Record) Status() *v1.DiskBackupRecord {
	if r.ID == "" || r.Stage == None {
		return nil
	}
	return &v1.DiskBackupRecord{
		ID: r.ID, Stage: r.Stage.Name(), Problem: r.Problem, StartedAt: optional(r.StartedAt), EndedAt: optional(r.EndedAt),
		Checkpoint: r.Checkpoint, Since: r.Since, FullBecause: r.FullBecause, Pull: r.Pull, Canceled: r.Canceled,
	}
}

// InProgress reports whether the disks of a guest are being backed up, or are about to be: it neither migrates, nor do its disks grow.
func InProgress(status *v1.VirtualMachineInstanceStatus) bool {
	intent, record := IntentOf(status), RecordOf(status)
	return !record.Ended() || intent != nil && intent.ID != record.ID && !intent.Canceled
}

// optional returns a time with the precision that JSON keeps, so that equal times compare as equal.
func optional(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	rounded := metav1.NewTime(t).Rfc3339Copy()
	return &rounded
}

func utc(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}
