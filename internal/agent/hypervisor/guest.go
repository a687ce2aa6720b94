// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"encoding/xml"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// GuestInfo is a report of the guest agent. Its texts are sanitized and its lists capped.
type GuestInfo struct {
	OS         GuestOS
	Hostname   string
	Interfaces []GuestInterface
	// Omitted is how many interfaces exceeded the limit.
	Omitted int
}

// GuestOS describes the operating system in the guest.
type GuestOS struct {
	ID, Name, PrettyName, Version, VersionID, KernelRelease, KernelVersion, Machine string
}

// GuestInterface is a network interface as the guest agent reports it.
type GuestInterface struct {
	Name, MAC string
	IPs       []string
}

// GuestAgent is a full report of the guest agent, about itself too. Its texts are sanitized and its lists capped.
type GuestAgent struct {
	// Version is the agent's version.
	Version string
	// Commands are the agent's commands.
	Commands []GuestCommand
	// Timezone is the guest's time zone: its name, if it has one, and its offset in seconds, in KubeVirt's format.
	Timezone string
	// Info is the part that the VMI's status contains too.
	Info GuestInfo
	// Users are the users that are logged in, Filesystems those that are mounted.
	Users       List[GuestUser]
	Filesystems List[GuestFilesystem]
	// Frozen reports whether the guest's file systems are frozen.
	Frozen bool
}

// GuestCommand is a command of the guest agent.
type GuestCommand struct {
	Name    string
	Enabled bool
}

// List is a list from a guest, up to a limit.
type List[T any] struct {
	Items []T
	// Omitted is how many items exceeded the limit.
	Omitted int
}

// GuestUser is a user that is logged in.
type GuestUser struct {
	Name, Domain string
	// LoginTime is in seconds since 1970.
	LoginTime float64
}

// GuestFilesystem is a mounted file system.
type GuestFilesystem struct {
	Name, Mountpoint, Type string
	UsedBytes, TotalBytes  int64
	Disks                  []GuestDisk
}

// GuestDisk is a disk of a file system.
type GuestDisk struct {
	Serial, Bus string
}

// Credentials are the access credentials that the guest agent sets in the guest.
type Credentials struct {
	// Keys are the users' SSH keys by the user's name. They replace the keys that a user has.
	Keys map[string][]string
	// Passwords are the users' passwords by the user's name.
	Passwords map[string]string
}

// CredentialsState is the result of setting credentials.
type CredentialsState struct {
	// Synchronized reports whether the guest has the credentials.
	Synchronized bool
	// Message is the reason for users why it does not.
	Message string
}

// AgentOffline is KubeVirt's message when no guest agent is connected.
const AgentOffline = "Guest agent is offline"

// credentialsResync is the period after which unchanged credentials are set again, as in KubeVirt: a guest may have
// been reset to a snapshot, or its users may have changed them.
const credentialsResync = 5 * time.Minute

// CredentialsKeeper decides when credentials are set in a guest again.
type CredentialsKeeper struct {
	applied Credentials
	at      time.Time
}

// Step sets the credentials if they are due and returns the result, or nil if they are not due.
func (k *CredentialsKeeper) Step(
	now time.Time, read func() (Credentials, error), apply func(Credentials) error,
) *CredentialsState {
	wanted, err := read()
	if err == nil && !k.at.IsZero() && now.Sub(k.at) < credentialsResync && reflect.DeepEqual(wanted, k.applied) {
		return nil
	}
	if err == nil {
		err = apply(wanted)
	}
	if err != nil {
		// Some credentials may have been set; the next step sets all of them.
		k.at = time.Time{}
		return &CredentialsState{Message: Clean(strings.ReplaceAll(err.Error(), "\n", "; "))}
	}
	k.applied, k.at = wanted, now
	return &CredentialsState{Synchronized: true}
}

// Forget makes the next step set the credentials, for example because the guest agent has reconnected.
func (k *CredentialsKeeper) Forget() { k.at = time.Time{} }

// Freeze records that the agent has frozen the guest's file systems. It is stored in the running domain's metadata, so
// that it survives a restart of the agent.
type Freeze struct {
	// Thaw is when they are thawed at the latest; zero means only on request.
	Thaw time.Time
}

// Note returns the freeze as an element for the domain's metadata.
func (f Freeze) Note() string { return launcherpod.FreezeNote(f.Thaw) }

// Freeze returns the freeze in the domain's metadata, or nil. One that cannot be parsed, which only a launcher can have
// written, is due for a thaw at once.
func (d *Domain) Freeze() *Freeze {
	note := d.note(launcherpod.FreezeURI, launcherpod.FreezeTag)
	if note == nil {
		return nil
	}
	found := &Freeze{}
	for _, a := range note.Attr {
		if a.Name.Local == "thaw" {
			var err error
			if found.Thaw, err = time.Parse(time.RFC3339, a.Value); err != nil {
				found.Thaw = time.Unix(0, 0)
			}
		}
	}
	return found
}

// ProbesPaused reports whether guestAgentPing probes are paused according to the domain's metadata.
func (d *Domain) ProbesPaused() bool {
	return d.note(launcherpod.ProbesURI, launcherpod.ProbesTag) != nil
}

// note returns an element of a running domain's metadata, or nil.
func (d *Domain) note(uri, tag string) *xml.StartElement {
	if !d.Active() || d.XML == nil || d.XML.Metadata == nil {
		return nil
	}
	decoder := xml.NewDecoder(strings.NewReader(d.XML.Metadata.XML))
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil
		}
		if start, ok := token.(xml.StartElement); ok && start.Name.Space == uri && start.Name.Local == tag {
			return &start
		}
	}
}

// The entry of a snapshot's freeze in the metadata of the running domain. That of a user's freeze is another one:
// either may exist without the other.
const (
	// SnapshotFreezeURI is the XML namespace of the entry, SnapshotFreezePrefix its prefix.
	SnapshotFreezeURI    = "https://github.com/vireo-project/vireo/snapshot-freeze"
	SnapshotFreezePrefix = "snapshot"
	snapshotFreezeTag    = "freeze"

	// maxFreezeID and MaxFreezeProblem are the limits for the texts of a record, as in the schema of the VMI's status.
	maxFreezeID      = 63
	MaxFreezeProblem = 1024
)

// ErrFreezeRecord means that the record of a snapshot's freeze in the domain's metadata cannot be read. Only a launcher
// can have written it.
var ErrFreezeRecord = errors.New("the record of a snapshot's freeze in the domain's metadata cannot be read")

// SnapshotFreezeNote returns a record as an element for the domain's metadata.
func SnapshotFreezeNote(r freeze.Record) string {
	var b strings.Builder
	attribute := func(name, value string) {
		if value == "" {
			return
		}
		b.WriteString(" " + name + "='")
		_ = xml.EscapeText(&b, []byte(value)) // A Builder's writes do not fail.
		b.WriteString("'")
	}
	b.WriteString("<" + snapshotFreezeTag)
	attribute("id", r.ID)
	attribute("stage", string(r.Stage.Name()))
	attribute("deadline", noteTime(r.Deadline))
	if r.Kept {
		attribute("kept", "true")
	}
	attribute("frozenAt", noteTime(r.FrozenAt))
	attribute("thawedAt", noteTime(r.ThawedAt))
	attribute("problem", CleanLine(r.Problem, MaxFreezeProblem))
	b.WriteString("/>")
	return b.String()
}

func noteTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// SnapshotFreeze returns the record of a snapshot's freeze in the domain's metadata, or nil. The error is
// ErrFreezeRecord.
func (d *Domain) SnapshotFreeze() (*freeze.Record, error) {
	note := d.note(SnapshotFreezeURI, snapshotFreezeTag)
	if note == nil {
		return nil, nil
	}
	r := &freeze.Record{}
	for _, a := range note.Attr {
		if err := setFreezeAttribute(r, a.Name.Local, a.Value); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrFreezeRecord, Clean(a.Name.Local), err)
		}
	}
	if r.ID == "" || r.Stage == freeze.None || r.Deadline.IsZero() {
		return nil, fmt.Errorf("%w: it has no ID, no stage or no deadline", ErrFreezeRecord)
	}
	return r, nil
}

func setFreezeAttribute(r *freeze.Record, name, value string) (err error) {
	switch name {
	case "id":
		if len(value) > maxFreezeID || printable.Text(value, maxFreezeID) != value {
			return errors.New("it is no ID")
		}
		r.ID = value
	case "stage":
		var known bool
		if r.Stage, known = freeze.StageNamed(v1.SnapshotFreezeStage(value)); !known {
			return errors.New("there is no such stage")
		}
	case "deadline":
		r.Deadline, err = readNoteTime(value)
	case "frozenAt":
		r.FrozenAt, err = readNoteTime(value)
	case "thawedAt":
		r.ThawedAt, err = readNoteTime(value)
	case "kept":
		r.Kept = value == "true"
	case "problem":
		r.Problem = CleanLine(value, MaxFreezeProblem)
	}
	return err
}

// readNoteTime reads a time in the precision of the API. Times before 1970 include those that the API takes for none.
func readNoteTime(value string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, value)
	if err != nil || t.Unix() < 0 {
		return time.Time{}, errors.New("it is no time")
	}
	return t.UTC().Truncate(time.Second), nil
}

// FrozenForSnapshot reports whether the guest may be frozen for a snapshot. That is assumed if the record cannot be
// read.
func (d *Domain) FrozenForSnapshot() bool {
	r, err := d.SnapshotFreeze()
	return err != nil || r != nil && !r.Ended()
}
