// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/decide/backup"
)

func backedUp(state State, note string) *Domain {
	note = strings.Replace(note, "<"+diskBackupTag, "<s:"+diskBackupTag+" xmlns:s='"+DiskBackupURI+"'", 1)
	return &Domain{State: state, XML: &libvirtxml.Domain{Metadata: &libvirtxml.DomainMetadata{XML: note}}}
}

func TestIsCheckpointName(t *testing.T) {
	for name, want := range map[string]bool{
		"b-20260301T120000Z": true, strings.Repeat("a", MaxCheckpointName): true,
		"": false, "a\nb": false, "a\xff": false, strings.Repeat("a", MaxCheckpointName+1): false,
	} {
		if got := IsCheckpointName(name); got != want {
			t.Errorf("%.20q: got %t", name, got)
		}
	}
}

func TestDiskBackupOfADomain(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, r := range []backup.Record{
		{ID: "a", Stage: backup.Requested, StartedAt: at},
		{ID: "a", Stage: backup.Running, StartedAt: at, Checkpoint: "b-20260301T120000Z", Since: "a-20260228T120000Z"},
		{ID: "a", Stage: backup.Running, StartedAt: at, Checkpoint: "b", FullBecause: "the guest's <restart>"},
		{ID: "a", Stage: backup.Running, StartedAt: at, Pull: true},
		{ID: "a", Stage: backup.Running, StartedAt: at, Pull: true, Canceled: true, Problem: "full"},
		{ID: "a", Stage: backup.Failed, StartedAt: at, EndedAt: at.Add(time.Minute), Problem: `it said "no" & <stopped>'`},
	} {
		got, err := backedUp(StateRunning, DiskBackupNote(r)).DiskBackup()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&r, got); diff != "" {
			t.Error(diff)
		}
	}
	if got, err := backedUp(StateRunning, "").DiskBackup(); got != nil || err != nil {
		t.Errorf("no entry is read as %v, %v", got, err)
	}
	if got, err := backedUp(StateEnded,
		DiskBackupNote(backup.Record{ID: "a", Stage: backup.Running})).DiskBackup(); got != nil || err != nil {
		t.Errorf("the entry of a guest that ended is read as %v, %v", got, err)
	}
}

func TestHostileDiskBackupRecord(t *testing.T) {
	for name, attributes := range map[string]string{
		"empty":              "",
		"no ID":              " stage='Running'",
		"no stage":           " id='a'",
		"an unknown stage":   " id='a' stage='Perhaps'",
		"a long ID":          " id='" + strings.Repeat("a", maxBackupID+1) + "' stage='Running'",
		"a control in an ID": " id='a&#x7f;' stage='Running'",
		"no time":            " id='a' stage='Running' startedAt='soon'",
		"a long checkpoint":  " id='a' stage='Running' checkpoint='" + strings.Repeat("a", MaxCheckpointName+1) + "'",
		"a control in since": " id='a' stage='Running' since='a&#x7f;'",
		"a year of 5 digits": " id='a' stage='Running' endedAt='10000-01-01T00:00:00Z'",
	} {
		if got, err := backedUp(StateRunning, "<"+diskBackupTag+attributes+"/>").DiskBackup(); !errors.Is(err,
			ErrBackupRecord) || got != nil {
			t.Errorf("%s: it is read as %v, %v", name, got, err)
		}
	}
	long := backedUp(StateRunning,
		"<"+diskBackupTag+" id='a' stage='Failed' problem='"+strings.Repeat("x&#10;", 4096)+"'/>")
	got, err := long.DiskBackup()
	if err != nil || len(got.Problem) > MaxBackupProblem || strings.Contains(got.Problem, "\n") {
		t.Errorf("a problem of %d bytes, %v", len(got.Problem), err)
	}
}
