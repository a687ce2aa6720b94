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

// now is a time before the deadline.
var now = early.Add(time.Second)

// TestAgentAfterARestart has what an agent finds that knows nothing but what it reads.
func TestAgentAfterARestart(t *testing.T) {
	at := func(stage Stage) Record { return Record{ID: id, Deadline: late, Stage: stage, FrozenAt: early} }
	ended := func(stage Stage, kept bool) Record {
		r := at(stage)
		r.Kept, r.ThawedAt = kept, now
		return r
	}
	for name, tc := range map[string]struct {
		intent intent
		record Record
		guest  Guest
		late   bool
		want   AgentAction
		writes Record
	}{
		"nothing":                                     {want: Wait},
		"a user's freeze":                             {guest: GuestFrozen, want: Wait},
		"a new intent":                                {intent: openIntent, want: Write, writes: Record{ID: id, Deadline: late, Stage: Requested, FrozenAt: now}},
		"an old intent":                               {intent: openIntent, late: true, want: Wait},
		"a canceled intent":                           {intent: canceledIntent, want: Wait},
		"an intent that has been served":              {intent: openIntent, record: ended(Thawed, false), want: Wait},
		"a guest that is not frozen yet":              {intent: openIntent, record: at(Requested), guest: GuestThawed, want: Freeze},
		"a guest that does not respond":               {intent: openIntent, record: at(Requested), want: Wait},
		"a guest that is frozen":                      {intent: openIntent, record: at(Requested), guest: GuestFrozen, want: Write, writes: at(Frozen)},
		"a guest that refused":                        {intent: openIntent, record: at(Requested), guest: GuestRefused, want: Write, writes: at(Failed)},
		"a frozen guest":                              {intent: openIntent, record: at(Frozen), guest: GuestFrozen, want: Wait},
		"a frozen guest without an agent":             {intent: openIntent, record: at(Frozen), want: Wait},
		"a guest that was reset":                      {intent: openIntent, record: at(Frozen), guest: GuestThawed, want: Write, writes: ended(Thawed, false)},
		"a frozen guest without an intent":            {record: at(Frozen), guest: GuestFrozen, want: Thaw, writes: ended(Thawed, false)},
		"a frozen guest and a canceled intent":        {intent: canceledIntent, record: at(Frozen), guest: GuestFrozen, want: Thaw, writes: ended(Thawed, false)},
		"a released guest":                            {intent: releasedIntent, record: at(Frozen), guest: GuestFrozen, want: Thaw, writes: ended(Thawed, true)},
		"a released guest that does not respond":      {intent: releasedIntent, record: at(Frozen), want: Thaw, writes: ended(Thawed, true)},
		"a guest that was thawed before it was found": {intent: releasedIntent, record: at(Frozen), guest: GuestThawed, want: Write, writes: ended(Thawed, false)},
		"a freeze that was canceled":                  {intent: canceledIntent, record: at(Requested), guest: GuestFrozen, want: Thaw, writes: at(Failed)},
		"a canceled freeze that may be pending":       {intent: canceledIntent, record: at(Requested), want: Thaw, writes: at(Failed)},
		"a canceled freeze that never happened":       {intent: canceledIntent, record: at(Requested), guest: GuestThawed, want: Write, writes: at(Failed)},
	} {
		t.Run(name, func(t *testing.T) {
			view := AgentView{Now: now, Intent: tc.intent.value(), Record: tc.record, Guest: tc.guest}
			if tc.late {
				view.Now = late
			}
			action, record := DecideAgent(view)
			if action != tc.want {
				t.Errorf("got action %d, want %d", action, tc.want)
			}
			if action != Write && action != Thaw {
				tc.writes = tc.record
			}
			if diff := cmp.Diff(tc.writes, record); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAGuestIsThawedAtTheDeadline(t *testing.T) {
	for _, read := range []intent{noIntent, openIntent, releasedIntent, canceledIntent} {
		record := Record{ID: id, Deadline: late, Stage: Frozen}
		action, next := DecideAgent(AgentView{Now: late, Intent: read.value(), Record: record, Guest: GuestFrozen})
		// A release proves that the snapshots had been taken, even if the agent reads it late.
		if action != Thaw || next.Kept != (read == releasedIntent) {
			t.Errorf("with intent %d: action %d, kept %t", read, action, next.Kept)
		}
	}
}

func TestAnotherIntentEndsTheFreeze(t *testing.T) {
	another := &Intent{ID: "another", Deadline: late}
	view := AgentView{Now: now, Intent: another, Record: Record{ID: id, Deadline: late, Stage: Frozen}, Guest: GuestFrozen}
	action, record := DecideAgent(view)
	if action != Thaw || record.Kept || record.ID != id {
		t.Fatalf("action %d, record %+v", action, record)
	}
	view.Record, view.Guest = record, GuestThawed
	if action, record = DecideAgent(view); action != Write || record.ID != "another" || record.Stage != Requested ||
		record.Kept {
		t.Errorf("action %d, record %+v", action, record)
	}
}

func TestControllerWithTheIntentOfAnotherSnapshot(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*ControllerView)
		want   ControllerAction
	}{
		"open":                      {func(*ControllerView) {}, Await},
		"canceled":                  {func(v *ControllerView) { v.Intent.End = Cancel }, WriteIntent},
		"released":                  {func(v *ControllerView) { v.Intent.End = Release }, Await},
		"released, and thawed":      {func(v *ControllerView) { v.Intent.End, v.Record.Stage = Release, Thawed }, Await},
		"released long ago":         {func(v *ControllerView) { v.Intent.End, v.Now = Release, late }, WriteIntent},
		"after its deadline":        {func(v *ControllerView) { v.Now = late }, WriteIntent},
		"of a snapshot after ours":  {func(v *ControllerView) { v.Snapshots = AllSnapshots }, Done},
		"and ours was frozen":       {func(v *ControllerView) { v.Record.ID = id }, Take},
		"and ours is not requested": {func(v *ControllerView) { v.Abandoned = true }, Done},
	} {
		t.Run(name, func(t *testing.T) {
			view := ControllerView{Now: now, ID: id, Limit: limit, Intent: &Intent{ID: "another", Deadline: late},
				Record: Record{ID: "another"}}
			tc.change(&view)
			if action, _ := DecideController(view); action != tc.want {
				t.Errorf("got action %d, want %d", action, tc.want)
			}
		})
	}
}

func TestMayClear(t *testing.T) {
	for name, tc := range map[string]struct {
		id     string
		intent intent
		record Record
		want   bool
	}{
		"none":                              {id: id},
		"open":                              {id: id, intent: openIntent, record: Record{ID: id, Stage: Thawed}},
		"released, and frozen":              {id: id, intent: releasedIntent, record: Record{ID: id, Stage: Frozen}},
		"released, and thawed":              {id: id, intent: releasedIntent, record: Record{ID: id, Stage: Thawed}, want: true},
		"canceled, and failed":              {id: id, intent: canceledIntent, record: Record{ID: id, Stage: Failed}, want: true},
		"canceled, and never served":        {id: id, intent: canceledIntent, record: Record{ID: "another", Stage: Frozen}, want: true},
		"that of another, after its thaw":   {id: "another", intent: releasedIntent, record: Record{ID: id, Stage: Thawed}},
		"that of another, after our freeze": {id: "another", intent: releasedIntent, record: Record{ID: "another", Stage: Thawed}},
	} {
		view := ControllerView{Now: now, ID: tc.id, Limit: limit, Intent: tc.intent.value(), Record: tc.record}
		if got := view.MayClear(); got != tc.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestController(t *testing.T) {
	record := func(stage Stage) Record { return Record{ID: id, Stage: stage} }
	for name, tc := range map[string]struct {
		intent    intent
		record    Record
		snapshots Snapshots
		late      bool
		abandoned bool
		refused   bool
		want      ControllerAction
		end       End
	}{
		"nothing":                             {want: WriteIntent},
		"the record of another snapshot":      {record: Record{ID: "x", Stage: Thawed}, want: WriteIntent},
		"no freeze yet":                       {intent: openIntent, want: Await},
		"a freeze that was requested":         {intent: openIntent, record: record(Requested), want: Await},
		"the freeze of another snapshot":      {intent: openIntent, record: Record{ID: "x", Stage: Frozen}, want: Await},
		"a frozen guest":                      {intent: openIntent, record: record(Frozen), want: Take},
		"a frozen guest and a snapshot":       {intent: openIntent, record: record(Frozen), snapshots: SomeSnapshots, want: Take},
		"all snapshots":                       {intent: openIntent, record: record(Frozen), snapshots: AllSnapshots, want: WriteIntent, end: Release},
		"all snapshots, late":                 {intent: openIntent, record: record(Frozen), snapshots: AllSnapshots, late: true, want: WriteIntent, end: Release},
		"a failed freeze":                     {intent: openIntent, record: record(Failed), want: WriteIntent, end: Cancel},
		"a guest that was thawed":             {intent: openIntent, record: record(Thawed), snapshots: SomeSnapshots, want: WriteIntent, end: Cancel},
		"a guest that was thawed in the end":  {intent: openIntent, record: record(Thawed), snapshots: AllSnapshots, want: WriteIntent, end: Cancel},
		"an agent that is away":               {intent: openIntent, late: true, want: WriteIntent, end: Cancel},
		"slow storage":                        {intent: openIntent, record: record(Frozen), snapshots: SomeSnapshots, late: true, want: WriteIntent, end: Cancel},
		"a snapshot that is refused":          {intent: openIntent, record: record(Frozen), snapshots: SomeSnapshots, refused: true, want: WriteIntent, end: Cancel},
		"the first snapshot is refused":       {intent: openIntent, record: record(Frozen), refused: true, want: WriteIntent, end: Cancel},
		"a snapshot is refused in advance":    {intent: openIntent, record: record(Requested), refused: true, want: WriteIntent, end: Cancel},
		"a cancel and a refused snapshot":     {intent: canceledIntent, record: record(Thawed), snapshots: SomeSnapshots, refused: true, want: Take},
		"a deleted snapshot":                  {intent: openIntent, record: record(Frozen), snapshots: SomeSnapshots, abandoned: true, want: WriteIntent, end: Cancel},
		"a deleted snapshot after a cancel":   {intent: canceledIntent, record: record(Frozen), abandoned: true, want: Done},
		"a deleted snapshot before a freeze":  {abandoned: true, want: Done},
		"a cancel":                            {intent: canceledIntent, record: record(Failed), want: Take},
		"a cancel and all snapshots":          {intent: canceledIntent, record: record(Failed), snapshots: AllSnapshots, want: Done},
		"a release":                           {intent: releasedIntent, record: record(Frozen), snapshots: AllSnapshots, want: Await},
		"a release and an agent that is away": {intent: releasedIntent, record: record(Frozen), snapshots: AllSnapshots, late: true, want: Done},
		"a thaw":                              {intent: releasedIntent, record: record(Thawed), snapshots: AllSnapshots, want: Done},
		"a new VMI":                           {snapshots: SomeSnapshots, want: Take},
		"a new VMI after all snapshots":       {snapshots: AllSnapshots, want: Done},
	} {
		t.Run(name, func(t *testing.T) {
			view := ControllerView{
				Now: now, ID: id, Limit: limit, Intent: tc.intent.value(), Record: tc.record, Snapshots: tc.snapshots,
				Abandoned: tc.abandoned, Refused: tc.refused,
			}
			if tc.late {
				view.Now = late
			}
			action, next := DecideController(view)
			if action != tc.want {
				t.Fatalf("got action %d, want %d", action, tc.want)
			}
			var want *Intent
			if tc.want == WriteIntent {
				want = &Intent{ID: id, Deadline: late, End: tc.end}
				if tc.intent == noIntent {
					want.Deadline = now.Add(limit)
				}
			}
			if diff := cmp.Diff(want, next); diff != "" {
				t.Errorf("intent (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLasted(t *testing.T) {
	record := Record{Stage: Frozen, FrozenAt: early, ThawedAt: late}
	if got := record.Lasted(); got != 0 {
		t.Errorf("a frozen guest was frozen for %s", got)
	}
	record.Stage = Thawed
	if got := record.Lasted(); got != limit {
		t.Errorf("got %s, want %s", got, limit)
	}
}

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
		if diff := cmp.Diff(intent,
			IntentOf(stored(t, v1.VirtualMachineInstanceStatus{SnapshotFreeze: intent.Status()}))); diff != "" {
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
		if diff := cmp.Diff(record,
			RecordOf(stored(t, v1.VirtualMachineInstanceStatus{SnapshotFreezeRecord: record.Status()}))); diff != "" {
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
