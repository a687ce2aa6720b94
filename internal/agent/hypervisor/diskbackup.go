// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"encoding/xml"
	"errors"
	"fmt"
	"path"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/decide/backup"
)

// The entry of a backup of the guest's disks in the metadata of the running domain.
const (
	// DiskBackupURI is the XML namespace of the entry, DiskBackupPrefix its prefix.
	DiskBackupURI    = "https://github.com/vireo-project/vireo/disk-backup"
	DiskBackupPrefix = "diskbackup"
	diskBackupTag    = "backup"

	// maxBackupID and MaxBackupProblem are the limits for the texts of a record, as in the schema of the VMI's status.
	maxBackupID      = 63
	MaxBackupProblem = 1024
	// MaxCheckpointName is the limit for the name of a checkpoint, as in the schema of the VMI's status.
	MaxCheckpointName = 253
)

// ErrBackupRecord means that the record of a backup in the domain's metadata cannot be read. Only a launcher can have
// written it.
var ErrBackupRecord = errors.New("the record of a backup in the domain's metadata cannot be read")

// BackupRequest is a backup to begin.
type BackupRequest struct {
	// Pool is the name of the pool that Dir becomes, the directory of the images.
	Pool, Dir string
	// Images are the images.
	Images []BackupImage
	// Checkpoint is the name of a checkpoint to create, from which a later backup can be an incremental one. Empty creates
	// none.
	Checkpoint string
	// Since is the checkpoint of an earlier backup: the images have only what has changed since. Empty copies everything.
	Since string
	// Socket is where QEMU serves the disks instead of copying them. The images are then the scratch files.
	Socket string
}

// BackupImage is the image that a disk is copied to.
type BackupImage struct {
	// Target is the name of the disk's target, such as vda.
	Target string
	// File is the name of the image in the directory of the backup.
	File string
	// Export is the name by which clients of the socket read the disk.
	Export string
	// Tracked reports whether the checkpoint has the disk: QEMU tracks its changes since then.
	Tracked bool
}

// File returns the path of an image.
func (r *BackupRequest) File(image BackupImage) string { return path.Join(r.Dir, image.File) }

// Checkpoint is a point in time since which QEMU tracks the changes of disks.
type Checkpoint struct {
	// Name is its name.
	Name string
	// Targets are the names of the targets of these disks.
	Targets []string
}

// DiskBackupNote returns a record as an element for the domain's metadata.
func DiskBackupNote(r backup.Record) string {
	var b strings.Builder
	b.WriteString("<" + diskBackupTag)
	for _, a := range []struct{ name, value string }{
		{"id", r.ID},
		{"stage", string(r.Stage.Name())},
		{"startedAt", noteTime(r.StartedAt)},
		{"endedAt", noteTime(r.EndedAt)},
		{"checkpoint", r.Checkpoint},
		{"since", r.Since},
		{"pull", noteFlag(r.Pull)},
		{"canceled", noteFlag(r.Canceled)},
		{"fullBecause", CleanLine(r.FullBecause, MaxBackupProblem)},
		{"problem", CleanLine(r.Problem, MaxBackupProblem)},
	} {
		if a.value != "" {
			b.WriteString(" " + a.name + "='")
			_ = xml.EscapeText(&b, []byte(a.value)) // A Builder's writes do not fail.
			b.WriteString("'")
		}
	}
	b.WriteString("/>")
	return b.String()
}

// DiskBackup returns the record of a backup in the domain's metadata, or nil. The error is ErrBackupRecord.
func (d *Domain) DiskBackup() (*backup.Record, error) {
	note := d.note(DiskBackupURI, diskBackupTag)
	if note == nil {
		return nil, nil
	}
	r := &backup.Record{}
	for _, a := range note.Attr {
		if err := setBackupAttribute(r, a.Name.Local, a.Value); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrBackupRecord, Clean(a.Name.Local), err)
		}
	}
	if r.ID == "" || r.Stage == backup.None {
		return nil, fmt.Errorf("%w: it has no ID or no stage", ErrBackupRecord)
	}
	return r, nil
}

func setBackupAttribute(r *backup.Record, name, value string) (err error) {
	switch name {
	case "id":
		if len(value) > maxBackupID || printable.Text(value, maxBackupID) != value {
			return errors.New("it is no ID")
		}
		r.ID = value
	case "stage":
		var known bool
		if r.Stage, known = backup.StageNamed(v1.DiskBackupStage(value)); !known {
			return errors.New("there is no such stage")
		}
	case "startedAt":
		r.StartedAt, err = readNoteTime(value)
	case "endedAt":
		r.EndedAt, err = readNoteTime(value)
	case "checkpoint":
		r.Checkpoint, err = checkpointName(value)
	case "since":
		r.Since, err = checkpointName(value)
	case "pull":
		r.Pull = value == flagSet
	case "canceled":
		r.Canceled = value == flagSet
	case "fullBecause":
		r.FullBecause = CleanLine(value, MaxBackupProblem)
	case "problem":
		r.Problem = CleanLine(value, MaxBackupProblem)
	}
	return err
}

// flagSet is the value of an attribute that is set.
const flagSet = "true"

func noteFlag(set bool) string {
	if set {
		return flagSet
	}
	return ""
}

// checkpointName returns a name if it can be that of a checkpoint.
func checkpointName(value string) (string, error) {
	if value != "" && !IsCheckpointName(value) {
		return "", errors.New("it is no name of a checkpoint")
	}
	return value, nil
}

// IsCheckpointName reports whether a text can be the name of a checkpoint that an agent has created. A launcher may
// list others.
func IsCheckpointName(value string) bool {
	return value != "" && len(value) <= MaxCheckpointName && printable.Text(value, MaxCheckpointName) == value
}
