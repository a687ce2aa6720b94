// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// stored returns a status as the API server returns it.
func stored(t *testing.T, status v1.VirtualMachineInstanceStatus) *v1.VirtualMachineInstanceStatus {
	t.Helper()
	raw, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	back := &v1.VirtualMachineInstanceStatus{}
	if err := json.Unmarshal(raw, back); err != nil {
		t.Fatal(err)
	}
	return back
}

func TestIntentInTheStatus(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, end := range []End{Open, Release, Cancel} {
		intent := &Intent{ID: "a", Deadline: at, End: end}
		if diff := cmp.Diff(intent, IntentOf(stored(t, v1.VirtualMachineInstanceStatus{SnapshotFreeze: intent.Status()}))); diff != "" {
			t.Errorf("end %d: %s", end, diff)
		}
	}
	var none *Intent
	if none.Status() != nil || IntentOf(&v1.VirtualMachineInstanceStatus{}) != nil {
		t.Error("an intent out of nothing")
	}
	if got := IntentOf(&v1.VirtualMachineInstanceStatus{SnapshotFreeze: &v1.SnapshotFreeze{}}); got != nil {
		t.Errorf("an intent without ID is %+v", got)
	}
	unknown := &v1.SnapshotFreeze{ID: "a", End: "Prolong"}
	if got := IntentOf(&v1.VirtualMachineInstanceStatus{SnapshotFreeze: unknown}); got.End != Cancel {
		t.Errorf("an unknown end is %d, not a cancel", got.End)
	}
}

func TestRecordInTheStatus(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, record := range []Record{
		{},
		{ID: "a", Deadline: at, Stage: Requested, FrozenAt: at},
		{ID: "a", Deadline: at, Stage: Frozen, FrozenAt: at},
		{ID: "a", Deadline: at, Stage: Thawed, Kept: true, FrozenAt: at, ThawedAt: at.Add(time.Second)},
		{ID: "a", Deadline: at, Stage: Failed, FrozenAt: at, Problem: "refused"},
	} {
		if diff := cmp.Diff(record, RecordOf(stored(t, v1.VirtualMachineInstanceStatus{SnapshotFreezeRecord: record.Status()}))); diff != "" {
			t.Error(diff)
		}
	}
	odd := &v1.SnapshotFreezeRecord{ID: "a", Stage: "Melted", Kept: true}
	if got := RecordOf(&v1.VirtualMachineInstanceStatus{SnapshotFreezeRecord: odd}); got.Stage != None || got.ID != "a" {
		t.Errorf("a record of an unknown stage is %+v", got)
	}
}

func TestMigrationWaitsForAFreeze(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	intent := func(end End) *Intent { return &Intent{ID: "a", Deadline: now.Add(time.Minute), End: end} }
	for name, c := range map[string]struct {
		intent *Intent
		record Record
		want   time.Duration
	}{
		"none":                             {nil, Record{}, 0},
		"a record whose intent is gone":    {nil, Record{ID: "a", Stage: Frozen, Deadline: now.Add(time.Hour)}, 0},
		"open":                             {intent(Open), Record{}, time.Minute},
		"open, after another one":          {intent(Open), Record{ID: "b", Stage: Thawed}, time.Minute},
		"requested":                        {intent(Open), Record{ID: "a", Stage: Requested}, time.Minute},
		"frozen, with a deadline":          {intent(Open), Record{ID: "a", Stage: Frozen, Deadline: now.Add(time.Hour)}, time.Minute},
		"open, and failed":                 {intent(Open), Record{ID: "a", Stage: Failed}, 0},
		"canceled, and frozen":             {intent(Cancel), Record{ID: "a", Stage: Frozen}, time.Minute},
		"released, and thawed":             {intent(Release), Record{ID: "a", Stage: Thawed}, 0},
		"canceled before the agent has it": {intent(Cancel), Record{}, 0},
		"frozen after the deadline":        {&Intent{ID: "a", Deadline: now}, Record{ID: "a", Stage: Frozen}, 0},
	} {
		status := &v1.VirtualMachineInstanceStatus{SnapshotFreeze: c.intent.Status(), SnapshotFreezeRecord: c.record.Status()}
		if got := Remaining(status, now); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// The status in memory is that which the API server returns: otherwise each reconciliation would write it again.
func TestStatusHasThePrecisionOfJSON(t *testing.T) {
	at := time.Now()
	status := v1.VirtualMachineInstanceStatus{
		SnapshotFreeze:       (&Intent{ID: "a", Deadline: at}).Status(),
		SnapshotFreezeRecord: Record{ID: "a", Deadline: at, Stage: Thawed, FrozenAt: at, ThawedAt: at}.Status(),
	}
	if diff := cmp.Diff(status, *stored(t, status)); diff != "" {
		t.Error(diff)
	}
}
