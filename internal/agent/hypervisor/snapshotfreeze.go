// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/printable"
	"github.com/vireo-project/vireo/internal/snapshot/freeze"
)

// The entry of a snapshot's freeze in the metadata of the running domain. That of a user's freeze is another one: either may exist
// without the other.
const (
	// SnapshotFreezeURI is the XML namespace of the entry, SnapshotFreezePrefix its prefix.
	SnapshotFreezeURI    = "https://github.com/vireo-project/vireo/snapshot-freeze"
	SnapshotFreezePrefix = "snapshot"
	snapshotFreezeTag    = "freeze"

	// maxFreezeID and MaxFreezeProblem are the limits for the texts of a record, as in the schema of the VMI's status.
	maxFreezeID      = 63
	MaxFreezeProblem = 1024
)

// ErrFreezeRecord means that the record of a snapshot's freeze in the domain's metadata cannot be read. Only a launcher can have
// written it.
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

// SnapshotFreeze returns the record of a snapshot's freeze in the domain's metadata, or nil. The error is ErrFreezeRecord.
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

// FrozenForSnapshot reports whether the guest may be frozen for a snapshot. That is assumed if the record cannot be read.
func (d *Domain) FrozenForSnapshot() bool {
	r, err := d.SnapshotFreeze()
	return err != nil || r != nil && !r.Ended()
}
