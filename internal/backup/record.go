// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"path"
	"time"

	"github.com/vireo-project/vireo/internal/export/content"
)

// Intent is the backup that virt-controller requests. It is in the VMI's status, and is only written with the resource version as a
// precondition.
type Intent struct {
	// ID identifies the backup: the UID of the VirtualMachineBackup. A guest is backed up at most once for it.
	ID string
	// UtilityVolume is the volume that the images are written to.
	UtilityVolume string
	// Directory is the directory in it, which is created, and FilePrefix how the names of the images begin.
	Directory, FilePrefix string
	// Volumes are the volumes of which the disks are copied.
	Volumes []string
	// Checkpoint is the name of a checkpoint to create, Since that of the one from which the backup is to be an incremental one, and Kept
	// are those from which later backups may be. Empty means none.
	Checkpoint, Since string
	Kept              []string
	// Pull means that QEMU serves the disks until the intent is canceled. The utility volume then has the scratch files, with what the guest
	// overwrites meanwhile.
	Pull bool
	// Exporter is the Pod that reads the disks of a pull. It is zero while there is none, and may be replaced by another.
	Exporter Exporter
	// Canceled is set once and never reset after that. A pull ends with it.
	Canceled bool
}

// The connections of a pull. The agent connects to the exporter with TLS, and keeps a few connections that are not used yet. Each is one
// session of NBD, in which the exporter is the client.
const (
	// ExporterPort is the port on which an exporter waits for the agent.
	ExporterPort = content.AgentPort
	// ExporterProtocol is the protocol that both negotiate with TLS.
	//
	// In NBD, the server greets first. Here, the exporter sends the four bytes of its client flags as soon as it wants to use a connection,
	// without waiting for the greeting, which follows: QEMU disconnects clients that do not finish the handshake within seconds, so that the
	// agent only connects to QEMU when the first bytes have arrived. QEMU's server always has the flags FIXED_NEWSTYLE and NO_ZEROES.
	ExporterProtocol = content.AgentProtocol
	// DirtyBitmap is the name of the bitmap with what has changed since the checkpoint, which each export of an incremental pull has: its
	// metadata context is DirtyContext. The name of the export is that of the volume.
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

// File returns the path of a volume's image in the utility volume, or of the scratch file in a pull, which libvirt removes at the end.
func (i *Intent) File(volume string) string {
	suffix := ".qcow2"
	if i.Pull {
		suffix = ".scratch.qcow2"
	}
	return path.Join(i.Directory, i.FilePrefix+volume+suffix)
}

// Record is what the agent has done for an intent. It is in the metadata of the running domain, which exist exactly as long as the guest.
// The VMI's status contains a copy for virt-controller.
type Record struct {
	// ID is the intent's ID, or empty if there has been none.
	ID string
	// Stage is the stage of the backup.
	Stage Stage
	// StartedAt is when it was requested, and EndedAt when the agent observed that it had ended.
	StartedAt, EndedAt time.Time
	// Checkpoint is the checkpoint that is created with the backup, Since the one from which it is an incremental one. Empty means none.
	Checkpoint, Since string
	// FullBecause explains to users why an incremental backup or a checkpoint was requested and there is none.
	FullBecause string
	// Pull reports whether QEMU serves the disks instead of copying them.
	Pull bool
	// Canceled is set before a pull that was served is ended because it was canceled. Such a pull succeeds; whether a client has read the
	// disks, the exporter knows.
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

// Begun reports whether the backup has its point in time, or never will have one: the guest need not be frozen any more.
func (r Record) Begun() bool { return r.Stage == Running || r.Stage == Succeeded || r.Stage == Failed }

// Serves reports whether QEMU serves the disks for the exporter of an intent.
func (r Record) Serves(i *Intent) bool {
	return r.Pull && r.Stage == Running && !r.Canceled && r.Problem == "" && i.ID == r.ID && i.Pull && !i.Canceled &&
		i.Exporter.IP != "" && i.Exporter.Port > 0 && i.Exporter.ServerName != ""
}
