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

	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestCredentialsKeeper(t *testing.T) {
	first := Credentials{Passwords: map[string]string{"root": "a"}}
	second := Credentials{Passwords: map[string]string{"root": "b"}}
	done := &CredentialsState{Synchronized: true}
	failed := errors.New("no such user")
	start := time.Unix(1000, 0)
	keeper := &CredentialsKeeper{}
	for _, step := range []struct {
		name            string
		after           time.Duration
		wanted          Credentials
		readErr, goneIn error
		forget          bool
		applies         bool
		want            *CredentialsState
	}{
		{name: "at once", wanted: first, applies: true, want: done},
		{name: "not again", after: time.Minute, wanted: first},
		{name: "after a change", after: 2 * time.Minute, wanted: second, applies: true, want: done},
		{name: "not before five minutes", after: 6 * time.Minute, wanted: second},
		{name: "after five minutes", after: 8 * time.Minute, wanted: second, applies: true, want: done},
		{name: "a Secret that cannot be read", after: 9 * time.Minute, readErr: failed, want: &CredentialsState{Message: "no such user"}},
		{name: "and can again", after: 10 * time.Minute, wanted: second, applies: true, want: done},
		{name: "a guest that refuses", after: 16 * time.Minute, wanted: second, goneIn: failed, applies: true,
			want: &CredentialsState{Message: "no such user"}},
		{name: "a guest that refuses twice", after: 16 * time.Minute, wanted: second, goneIn: errors.Join(failed, failed), applies: true,
			want: &CredentialsState{Message: "no such user; no such user"}},
		{name: "and is tried again", after: 16 * time.Minute, wanted: second, applies: true, want: done},
		{name: "another agent", after: 17 * time.Minute, wanted: second, forget: true, applies: true, want: done},
	} {
		t.Run(step.name, func(t *testing.T) {
			if step.forget {
				keeper.Forget()
			}
			applied := false
			got := keeper.Step(start.Add(step.after), func() (Credentials, error) { return step.wanted, step.readErr },
				func(c Credentials) error {
					applied = true
					if diff := cmp.Diff(step.wanted, c); diff != "" {
						t.Error(diff)
					}
					return step.goneIn
				})
			if diff := cmp.Diff(step.want, got); diff != "" || applied != step.applies {
				t.Errorf("applied %v, want %v: %s", applied, step.applies, diff)
			}
		})
	}
}

func TestFreezeOfADomain(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const uid = `<kubevirt xmlns="http://kubevirt.io"><metadata><uid>u</uid></metadata></kubevirt>`
	ours := func(attributes string) string {
		return uid + `<vireo:frozen xmlns:vireo="` + launcherpod.FreezeURI + `"` + attributes + `/>`
	}
	for name, c := range map[string]struct {
		metadata string
		state    State
		want     *Freeze
	}{
		"none":                      {uid, StateRunning, nil},
		"no metadata":               {"", StateRunning, nil},
		"with a time":               {ours(` thaw="2026-03-01T12:00:00Z"`), StateRunning, &Freeze{Thaw: at}},
		"of a guest that is paused": {ours(` thaw="2026-03-01T12:00:00Z"`), StatePaused, &Freeze{Thaw: at}},
		"without one":               {ours(""), StateRunning, &Freeze{}},
		"of a guest that ended":     {ours(""), StateEnded, nil},
		"without our namespace":     {uid + `<frozen thaw="2026-03-01T12:00:00Z"/>`, StateRunning, nil},
		"at no time":                {ours(` thaw="soon"`), StateRunning, &Freeze{Thaw: time.Unix(0, 0)}},
		"no XML":                    {uid + "<", StateRunning, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Domain{State: c.state, XML: &libvirtxml.Domain{Metadata: &libvirtxml.DomainMetadata{XML: c.metadata}}}
			if diff := cmp.Diff(c.want, d.Freeze()); diff != "" {
				t.Error(diff)
			}
		})
	}
	if note := (Freeze{Thaw: at.In(time.FixedZone("", 3600))}).Note(); note != `<frozen thaw='2026-03-01T12:00:00Z'/>` {
		t.Error(note)
	}
}

func TestPausedProbesOfADomain(t *testing.T) {
	const uid = `<kubevirt xmlns="http://kubevirt.io"><metadata><uid>u</uid></metadata></kubevirt>`
	const frozen = `<vireo:frozen xmlns:vireo="` + launcherpod.FreezeURI + `"/>`
	const paused = `<probes:paused xmlns:probes="` + launcherpod.ProbesURI + `"/>`
	for name, c := range map[string]struct {
		metadata string
		state    State
		want     bool
	}{
		"none":                      {uid + frozen, StateRunning, false},
		"alone":                     {paused, StateRunning, true},
		"beside others":             {uid + frozen + paused, StateRunning, true},
		"of a guest that is paused": {uid + paused, StatePaused, true},
		"of a guest that ended":     {uid + paused, StateEnded, false},
		"without our namespace":     {uid + `<paused/>`, StateRunning, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Domain{State: c.state, XML: &libvirtxml.Domain{Metadata: &libvirtxml.DomainMetadata{XML: c.metadata}}}
			if got := d.ProbesPaused(); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

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
	if got, err := noted(StateEnded,
		SnapshotFreezeNote(freeze.Record{ID: "a", Stage: freeze.Frozen, Deadline: at})).SnapshotFreeze(); got != nil ||
		err != nil {
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
	long := noted(StateRunning,
		"<"+snapshotFreezeTag+" id='a' stage='Failed' deadline='2026-03-01T12:00:00Z' problem='"+
			strings.Repeat("x&#10;", 4096)+"'/>")
	got, err := long.SnapshotFreeze()
	if err != nil || len(got.Problem) > MaxFreezeProblem || strings.Contains(got.Problem, "\n") {
		t.Errorf("a problem of %d bytes, %v", len(got.Problem), err)
	}
}

func TestGuestMayBeFrozenForASnapshot(t *testing.T) {
	for stage, want := range map[freeze.Stage]bool{freeze.Requested: true, freeze.Frozen: true, freeze.Thawed: false,
		freeze.Failed: false} {
		if got := noted(StateRunning,
			SnapshotFreezeNote(freeze.Record{ID: "a", Stage: stage, Deadline: time.Now()})).FrozenForSnapshot(); got != want {
			t.Errorf("stage %d: got %t", stage, got)
		}
	}
	if noted(StateRunning, "").FrozenForSnapshot() {
		t.Error("a guest without a record counts as frozen")
	}
}
