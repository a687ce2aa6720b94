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

	"github.com/vireo-project/vireo/internal/snapshot/freeze"
)

func noted(state State, note string) *Domain {
	note = strings.Replace(note, "<"+snapshotFreezeTag, "<s:"+snapshotFreezeTag+" xmlns:s='"+SnapshotFreezeURI+"'", 1)
	return &Domain{State: state, XML: &libvirtxml.Domain{Metadata: &libvirtxml.DomainMetadata{XML: note}}}
}

func TestSnapshotFreezeOfADomain(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, r := range []freeze.Record{
		{ID: "a", Stage: freeze.Requested, Deadline: at, FrozenAt: at},
		{ID: "a", Stage: freeze.Failed, Deadline: at, FrozenAt: at, Problem: `it said "no" & <stopped>'`},
		{ID: "a", Stage: freeze.Thawed, Kept: true, Deadline: at, FrozenAt: at, ThawedAt: at.Add(time.Minute)},
	} {
		got, err := noted(StateRunning, SnapshotFreezeNote(r)).SnapshotFreeze()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&r, got); diff != "" {
			t.Error(diff)
		}
	}
	if got, err := noted(StateRunning, "").SnapshotFreeze(); got != nil || err != nil {
		t.Errorf("no entry is read as %v, %v", got, err)
	}
	if got, err := noted(StateEnded, SnapshotFreezeNote(freeze.Record{ID: "a", Stage: freeze.Frozen, Deadline: at})).SnapshotFreeze(); got != nil || err != nil {
		t.Errorf("the entry of a guest that ended is read as %v, %v", got, err)
	}
}

func TestHostileSnapshotFreezeRecord(t *testing.T) {
	for name, attributes := range map[string]string{
		"empty":              "",
		"no ID":              " stage='Frozen' deadline='2026-03-01T12:00:00Z'",
		"no stage":           " id='a' deadline='2026-03-01T12:00:00Z'",
		"an unknown stage":   " id='a' stage='Molten' deadline='2026-03-01T12:00:00Z'",
		"a long ID":          " id='" + strings.Repeat("a", maxFreezeID+1) + "' stage='Frozen' deadline='2026-03-01T12:00:00Z'",
		"a control in an ID": " id='a&#x7f;' stage='Frozen' deadline='2026-03-01T12:00:00Z'",
		"no deadline":        " id='a' stage='Frozen'",
		"a deadline of zero": " id='a' stage='Frozen' deadline='0001-01-01T00:00:00Z'",
		"no time":            " id='a' stage='Frozen' deadline='soon'",
		"a year of 5 digits": " id='a' stage='Frozen' deadline='2026-03-01T12:00:00Z' frozenAt='10000-01-01T00:00:00Z'",
	} {
		d := noted(StateRunning, "<"+snapshotFreezeTag+attributes+"/>")
		if got, err := d.SnapshotFreeze(); !errors.Is(err, ErrFreezeRecord) || got != nil {
			t.Errorf("%s: it is read as %v, %v", name, got, err)
		}
		if !d.FrozenForSnapshot() {
			t.Errorf("%s: the guest counts as not frozen", name)
		}
	}
	long := noted(StateRunning, "<"+snapshotFreezeTag+" id='a' stage='Failed' deadline='2026-03-01T12:00:00Z' problem='"+strings.Repeat("x&#10;", 4096)+"'/>")
	got, err := long.SnapshotFreeze()
	if err != nil || len(got.Problem) > MaxFreezeProblem || strings.Contains(got.Problem, "\n") {
		t.Errorf("a problem of %d bytes, %v", len(got.Problem), err)
	}
}

func TestGuestMayBeFrozenForASnapshot(t *testing.T) {
	for stage, want := range map[freeze.Stage]bool{freeze.Requested: true, freeze.Frozen: true, freeze.Thawed: false, freeze.Failed: false} {
		if got := noted(StateRunning, SnapshotFreezeNote(freeze.Record{ID: "a", Stage: stage, Deadline: time.Now()})).FrozenForSnapshot(); got != want {
			t.Errorf("stage %d: got %t", stage, got)
		}
	}
	if noted(StateRunning, "").FrozenForSnapshot() {
		t.Error("a guest without a record counts as frozen")
	}
}
