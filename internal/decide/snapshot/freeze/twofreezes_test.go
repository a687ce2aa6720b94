// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import (
	"fmt"
	"testing"
	"time"

	"github.com/vireo-project/vireo/test/model"
)

// shared is a state of a second model: two owners, such as a snapshot and a backup, freeze the same guest. The faults
// of processes are those of the first model. Owners read the latest state, because they write intents with the resource
// version that they have read.
type shared struct {
	// intent and copy are in the VMI's status, record is in the domain's metadata, and agentIntent is what the agent has
	// read last.
	intent, agentIntent ownedIntent
	copy, record        ownedRecord
	// frozen is the truth. pending reports whether a freeze was requested that the guest has not processed.
	frozen, pending bool
	// thawing is the record that the agent writes once the guest has responded to its thaw, and responded that it has.
	thawing   ownedRecord
	responded bool
	owners    [2]freezer
	// clock is how many times the limit of a freeze has passed.
	clock uint8
}

// ownedIntent is an intent. The owner is an index of owners plus one, or zero for no intent; the deadline is a value of
// the clock.
type ownedIntent struct {
	owner    uint8
	end      End
	deadline uint8
}

// ownedRecord is a record with its owner.
type ownedRecord struct {
	owner, deadline uint8
	stage           Stage
	kept            bool
}

// freezer is one owner of freezes.
type freezer struct {
	// taken is how many snapshots there are, and broken reports whether the guest was not frozen for all of them.
	taken  uint8
	broken bool
	// done and consistent are its conclusion, and cleared reports that it has nothing more to do.
	done, consistent, cleared bool
}

// maxClock ends the passing of time: an intent that is written at that time does not expire in the model.
const maxClock = 2

func at(clock uint8) time.Time { return early.Add(time.Duration(clock) * limit) }

func name(owner uint8) string { return string(rune('`' + owner)) }

func ownerOf(id string) uint8 {
	if id == "" {
		return 0
	}
	return id[0] - '`'
}

func clockOf(t time.Time) uint8 { return uint8(t.Sub(early) / limit) }

func (i ownedIntent) value() *Intent {
	if i.owner == 0 {
		return nil
	}
	return &Intent{ID: name(i.owner), Deadline: at(i.deadline), End: i.end}
}

func (r ownedRecord) value() Record {
	if r.owner == 0 {
		return Record{}
	}
	return Record{ID: name(r.owner), Deadline: at(r.deadline), Stage: r.stage, Kept: r.kept}
}

func owned(r Record) ownedRecord {
	return ownedRecord{owner: ownerOf(r.ID), deadline: clockOf(r.Deadline), stage: r.Stage, kept: r.Kept}
}

// thaw changes the guest.
func (w *shared) thaw() {
	for i := range w.owners {
		if o := &w.owners[i]; w.frozen && o.taken > 0 && o.taken < disks {
			o.broken = true
		}
	}
	w.frozen = false
}

// decides are the decisions of an owner.
type decides func(ControllerView) (ControllerAction, *Intent)

// steps adds the steps from a state.
func (w shared) steps(decide decides, timePasses bool, add model.Add[shared]) {
	next := func(name string, change func(*shared)) {
		after := w
		change(&after)
		add(name, false, after)
	}
	for i := range w.owners {
		w.ownerSteps(i, decide, next)
	}
	w.agentSteps(next)
	if w.pending {
		next("the guest freezes", func(w *shared) { w.pending, w.frozen = false, true })
	}
	if w.agentIntent != w.intent {
		next("the agent reads the intent", func(w *shared) { w.agentIntent = w.intent })
	}
	if w.copy != w.record {
		next("the agent copies the record", func(w *shared) { w.copy = w.record })
	}
	if timePasses && w.clock < maxClock {
		next("time passes", func(w *shared) { w.clock++ })
	}
}

func (w shared) ownerSteps(i int, decide decides, next func(string, func(*shared))) {
	o, owner := w.owners[i], uint8(i+1)
	view := ControllerView{
		Now: at(w.clock), ID: name(owner), Limit: limit, Intent: w.intent.value(), Record: w.copy.value(),
		Snapshots: []Snapshots{NoSnapshot, SomeSnapshots, AllSnapshots}[o.taken],
	}
	if o.done {
		if o.cleared || view.Intent == nil || view.Intent.ID != view.ID {
			return
		}
		if view.MayClear() {
			next(view.ID+" removes its intent", func(w *shared) { w.intent, w.owners[i].cleared = ownedIntent{}, true })
		}
		return
	}
	switch action, intent := decide(view); action {
	case WriteIntent:
		next(fmt.Sprintf("%s writes an intent with end %d", view.ID, intent.End), func(w *shared) {
			w.intent = ownedIntent{owner, intent.End, clockOf(intent.Deadline)}
		})
	case Take:
		next(view.ID+" takes a snapshot", func(w *shared) {
			w.owners[i].taken++
			w.owners[i].broken = o.broken || !w.frozen
		})
	case Done:
		next(view.ID+" is done", func(w *shared) { w.owners[i].done, w.owners[i].consistent = true, view.Consistent() })
	}
}

func (w shared) agentSteps(next func(string, func(*shared))) {
	switch {
	case w.thawing.owner != 0 && w.responded:
		next("the agent writes the record after the thaw",
			func(w *shared) { w.record, w.thawing, w.responded = w.thawing, ownedRecord{}, false })
		return
	case w.thawing.owner != 0 && w.pending:
		return
	case w.thawing.owner != 0:
		next("the guest thaws", func(w *shared) {
			w.responded = w.frozen
			if !w.frozen {
				w.thawing = ownedRecord{}
			}
			w.thaw()
		})
		return
	}
	guest := GuestThawed
	switch {
	case w.pending:
		guest = GuestUnknown
	case w.frozen:
		guest = GuestFrozen
	}
	action, record := DecideAgent(
		AgentView{Now: at(w.clock), Intent: w.agentIntent.value(), Record: w.record.value(), Guest: guest})
	switch action {
	case Write:
		next(fmt.Sprintf("the agent writes %+v", owned(record)), func(w *shared) { w.record = owned(record) })
	case Freeze:
		next("the agent freezes", func(w *shared) { w.pending = true })
	case Thaw:
		next("the agent thaws", func(w *shared) { w.thawing = owned(record) })
	}
}

// exploreShared enumerates the states. If no time passes, nothing but the other owner can keep a freeze from being
// consistent.
func exploreShared(decide decides, timePasses bool) *model.Explored[shared] {
	return model.Explore(
		func(w shared, add model.Add[shared]) { w.steps(decide, timePasses, add) },
		func(w shared) string {
			for i, o := range w.owners {
				switch {
				case o.done && o.consistent && o.broken:
					return fmt.Sprintf("%s is reported as consistent, and is not", name(uint8(i+1)))
				case o.done && !o.consistent && !timePasses:
					return fmt.Sprintf("%s is not consistent although nothing failed", name(uint8(i+1)))
				}
			}
			if w.frozen && w.record.value().Ended() {
				return "the guest is frozen and nothing will thaw it"
			}
			return ""
		})
}

// ended reports whether both owners are done, and nothing is left to do for a third one.
func (w shared) ended() bool {
	return w.owners[0].done && w.owners[1].done && !w.frozen && !w.pending && w.record.value().Ended() &&
		(w.intent.owner == 0 || w.intent.end == Cancel || w.intent.deadline <= w.clock)
}

func TestTwoFreezesDoNotDisturbEachOther(t *testing.T) {
	for _, timePasses := range []bool{false, true} {
		e := exploreShared(DecideController, timePasses)
		if e.Violation != "" {
			t.Fatalf("%s:\n  %s\n%+v", e.Violation, e.Path(e.At), e.At)
		}
		if w, found := e.Stuck(shared.ended); found {
			t.Fatalf("the owners cannot end:\n  %s\n%+v", e.Path(w), w)
		}
		t.Logf("%d states", len(e.States))
	}
}

func TestSecondModelDetectsThatAReleasedIntentIsReplaced(t *testing.T) {
	e := exploreShared(func(v ControllerView) (ControllerAction, *Intent) {
		if v.Intent != nil && v.Intent.ID != v.ID && v.Intent.End == Release {
			v.Intent.End = Cancel
		}
		return DecideController(v)
	}, false)
	if e.Violation == "" {
		t.Fatal("the model finds no violation")
	}
	t.Log(e.Violation + ":\n  " + e.Path(e.At))
}
