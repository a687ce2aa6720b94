// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package backup decides about the backup of a running guest's disks. virt-controller writes an intent to the VMI's
// status. The agent keeps a record of what it has done in the metadata of the running domain, and copies it to the
// VMI's status. Everything here is pure: an action can be repeated, and after a restart the next process decides again
// from what it observes.
//
// docs/adr/0090 has the reasons.
package backup

import (
	"path"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/exporter/content"
)

// Intent is the backup that virt-controller requests. It is in the VMI's status, and is only written with the resource
// version as a precondition.
type Intent struct {
	// ID identifies the backup: the UID of the VirtualMachineBackup. A guest is backed up at most once for it.
	ID string
	// UtilityVolume is the volume that the images are written to.
	UtilityVolume string
	// Directory is the directory in it, which is created, and FilePrefix how the names of the images begin.
	Directory, FilePrefix string
	// Volumes are the volumes of which the disks are copied.
	Volumes []string
	// Checkpoint is the name of a checkpoint to create, Since that of the one from which the backup is to be an
	// incremental one, and Kept are those from which later backups may be. Empty means none.
	Checkpoint, Since string
	Kept              []string
	// Pull means that QEMU serves the disks until the intent is canceled. The utility volume then has the scratch files,
	// with what the guest overwrites meanwhile.
	Pull bool
	// Exporter is the Pod that reads the disks of a pull. It is zero while there is none, and may be replaced by another.
	Exporter Exporter
	// Canceled is set once and never reset after that. A pull ends with it.
	Canceled bool
}

// The connections of a pull. The agent connects to the exporter with TLS, and keeps a few connections that are not used
// yet. Each is one session of NBD, in which the exporter is the client.
const (
	// ExporterPort is the port on which an exporter waits for the agent.
	ExporterPort = content.AgentPort
	// ExporterProtocol is the protocol that both negotiate with TLS.
	//
	// In NBD, the server greets first. Here, the exporter sends the four bytes of its client flags as soon as it wants to
	// use a connection, without waiting for the greeting, which follows: QEMU disconnects clients that do not finish the
	// handshake within seconds, so that the agent only connects to QEMU when the first bytes have arrived. QEMU's server
	// always has the flags FIXED_NEWSTYLE and NO_ZEROES.
	ExporterProtocol = content.AgentProtocol
	// DirtyBitmap is the name of the bitmap with what has changed since the checkpoint, which each export of an
	// incremental pull has: its metadata context is DirtyContext. The name of the export is that of the volume.
	DirtyBitmap  = "changes"
	DirtyContext = "qemu:dirty-bitmap:" + DirtyBitmap
)

// Exporter is a Pod to which the agent connects so that it can read the disks of a pull.
type Exporter struct {
	// IP and Port are its address.
	IP   string
	Port int32
	// ServerName is the name in its certificate, which the authority of exporters has signed.
	ServerName string
	// UID is the Pod's.
	UID string
}

// File returns the path of a volume's image in the utility volume, or of the scratch file in a pull, which libvirt
// removes at the end.
func (i *Intent) File(volume string) string {
	suffix := ".qcow2"
	if i.Pull {
		suffix = ".scratch.qcow2"
	}
	return path.Join(i.Directory, i.FilePrefix+volume+suffix)
}

// Record is what the agent has done for an intent. It is in the metadata of the running domain, which exist exactly as
// long as the guest. The VMI's status contains a copy for virt-controller.
type Record struct {
	// ID is the intent's ID, or empty if there has been none.
	ID string
	// Stage is the stage of the backup.
	Stage Stage
	// StartedAt is when it was requested, and EndedAt when the agent observed that it had ended.
	StartedAt, EndedAt time.Time
	// Checkpoint is the checkpoint that is created with the backup, Since the one from which it is an incremental one.
	// Empty means none.
	Checkpoint, Since string
	// FullBecause explains to users why an incremental backup or a checkpoint was requested and there is none.
	FullBecause string
	// Pull reports whether QEMU serves the disks instead of copying them.
	Pull bool
	// Canceled is set before a pull that was served is ended because it was canceled. Such a pull succeeds; whether a
	// client has read the disks, the exporter knows.
	Canceled bool
	// Problem explains to users why it failed. It is set before a running pull is ended because of it.
	Problem string
}

// Incremental reports whether the backup only has what has changed since an earlier one.
func (r Record) Incremental() bool { return r.Since != "" }

// Stage is the stage of a backup. A backup never returns to an earlier one.
type Stage uint8

// The stages.
const (
	// None: there has been no backup.
	None Stage = iota
	// Requested: libvirt's job may have begun or not. Results of earlier jobs have been discarded.
	Requested
	// Running: the job has begun, so the backup has its point in time. The disks of a pull can be read.
	Running
	// Succeeded: the disks have been copied. A pull was canceled, and could be read until then.
	Succeeded
	// Failed: they have not, and will not be.
	Failed
)

// Ended reports whether the agent has nothing more to do for the backup.
func (r Record) Ended() bool { return r.Stage == None || r.Stage == Succeeded || r.Stage == Failed }

// Begun reports whether the backup has its point in time, or never will have one: the guest need not be frozen any
// more.
func (r Record) Begun() bool { return r.Stage == Running || r.Stage == Succeeded || r.Stage == Failed }

// Serves reports whether QEMU serves the disks for the exporter of an intent.
func (r Record) Serves(i *Intent) bool {
	return r.Pull && r.Stage == Running && !r.Canceled && r.Problem == "" && i.ID == r.ID && i.Pull && !i.Canceled &&
		i.Exporter.IP != "" && i.Exporter.Port > 0 && i.Exporter.ServerName != ""
}

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
		ID: b.ID, UtilityVolume: b.UtilityVolume, Directory: b.Directory, FilePrefix: b.FilePrefix,
		Volumes:    slices.Clone(b.Volumes),
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
		ID: i.ID, UtilityVolume: i.UtilityVolume, Directory: i.Directory, FilePrefix: i.FilePrefix,
		Volumes:    slices.Clone(i.Volumes),
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

// InProgress reports whether the disks of a guest are being backed up, or are about to be: it neither migrates, nor do
// its disks grow.
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
