// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import (
	"fmt"
	"slices"
	"time"
)

const id = "snapshot"

// The times of the model: a clock shows one of them.
var (
	early = time.Unix(0, 0)
	limit = time.Minute
	late  = early.Add(limit)
)

// intent is the state of the intent in the VMI's status.
type intent uint8

const (
	noIntent intent = iota
	openIntent
	releasedIntent
	canceledIntent
)

func (i intent) value() *Intent {
	if i == noIntent {
		return nil
	}
	return &Intent{ID: id, Deadline: late, End: End(i - openIntent)}
}

// record is what matters of a Record.
type record struct {
	stage Stage
	kept  bool
}

func (r record) value() Record {
	if r.stage == None {
		return Record{}
	}
	return Record{ID: id, Deadline: late, Stage: r.stage, Kept: r.kept}
}

func recorded(r Record) record { return record{r.Stage, r.Kept} }

// world is a state of the model: one guest, of which one snapshot with two disks is taken.
type world struct {
	// intent and copy are in the VMI's status; record is in the domain's metadata.
	intent intent
	copy   record
	record record
	// agentIntent, controllerIntent and controllerCopy are what the two processes have read last.
	agentIntent      intent
	controllerIntent intent
	controllerCopy   record

	// frozen is the truth. claims is what the guest agent reports: Windows may have thawed in between.
	frozen, claims bool
	// pending reports whether a freeze was requested that the guest has not processed.
	pending bool
	// refused is what only the running process of the agent knows.
	refused bool
	// thawing is the record that the running process writes once the guest has responded to its thaw; and responded that
	// it has.
	thawing   record
	responded bool
	// agentLate and controllerLate report whether the deadline has passed by either clock.
	agentLate, controllerLate bool
	// taken is how many snapshots there are.
	taken uint8
	// broken reports whether the guest was not frozen when a snapshot was taken, or was thawed between them.
	broken bool
	// abandoned reports whether the snapshot was deleted.
	abandoned bool
	// done and consistent are virt-controller's conclusion.
	done, consistent bool
	// resets is how often the guest thawed by itself.
	resets uint8
}

// rules are what the model checks, so that the tests can break them.
type rules struct {
	agent      func(AgentView) (AgentAction, Record)
	controller func(ControllerView) (ControllerAction, *Intent)
	// hasty: the agent decides what to write after a thaw when the guest has responded.
	hasty bool
	// blind: virt-controller writes intents and finishes without reading them first.
	blind bool
}

// step is a transition of the model.
type step struct {
	name  string
	after world
	// fault reports whether it need not happen.
	fault bool
}

const disks = 2

func clock(isLate bool) time.Time {
	if isLate {
		return late
	}
	return early
}

func (w world) guest() Guest {
	switch {
	case w.refused:
		return GuestRefused
	case w.pending:
		return GuestUnknown
	case w.claims:
		return GuestFrozen
	default:
		return GuestThawed
	}
}

// thaw changes the guest, whichever process thaws it.
func (w *world) thaw() {
	if w.taken > 0 && w.taken < disks && w.frozen {
		w.broken = true
	}
	w.frozen, w.claims = false, false
}

func (r rules) steps(w world) []step {
	out := slices.Concat(r.agentSteps(w), r.controllerSteps(w))
	add := func(name string, fault bool, change func(*world)) {
		next := w
		change(&next)
		out = append(out, step{name, next, fault})
	}
	if w.pending {
		add("the guest freezes", false, func(w *world) { w.pending, w.frozen, w.claims = false, true, true })
		add("the guest refuses to freeze", true, func(w *world) { w.pending, w.refused = false, true })
	}
	if w.agentIntent != w.intent {
		add("the agent reads the intent", false, func(w *world) { w.agentIntent = w.intent })
	}
	if w.copy != w.record {
		add("the agent copies the record", false, func(w *world) { w.copy = w.record })
	}
	if w.controllerIntent != w.intent || w.controllerCopy != w.copy {
		add("virt-controller reads", false, func(w *world) { w.controllerIntent, w.controllerCopy = w.intent, w.copy })
	}
	add("the agent restarts", true, func(w *world) { w.refused, w.thawing, w.responded = false, record{}, false })
	for old := noIntent; old < w.intent && old <= openIntent; old++ {
		add("the agent restarts and reads an old intent", true, func(w *world) {
			w.refused, w.thawing, w.responded, w.agentIntent = false, record{}, false, old
		})
	}
	for old := noIntent; old < w.intent; old++ {
		add("another virt-controller leads and reads an old intent", true,
			func(w *world) { w.controllerIntent, w.controllerCopy = old, record{} })
	}
	add("the snapshot is deleted", true, func(w *world) { w.abandoned = true })
	if w.resets == 0 {
		add("the guest is reset", true, func(w *world) { w.thaw(); w.pending, w.resets = false, 1 })
		if w.frozen {
			add("Windows thaws", true, func(w *world) { w.thaw(); w.claims, w.resets = true, 1 })
		}
	}
	add("the deadline passes on the node", false, func(w *world) { w.agentLate = true })
	add("the deadline passes for virt-controller", false, func(w *world) { w.controllerLate = true })
	return out
}

func (r rules) agentSteps(w world) []step {
	if w.thawing.stage != None {
		return r.thawSteps(w)
	}
	action, next := r.agent(w.agentView())
	after := w
	after.refused = false
	switch action {
	case Write:
		after.record = recorded(next)
		return []step{{name: fmt.Sprintf("the agent writes %+v", after.record), after: after}}
	case Freeze:
		after.pending = true
		return []step{{name: "the agent freezes", after: after}}
	case Thaw:
		after.thawing = recorded(next)
		return []step{{name: "the agent thaws", after: after}}
	default:
		return nil
	}
}

func (w world) agentView() AgentView {
	return AgentView{Now: clock(w.agentLate), Intent: w.agentIntent.value(), Record: w.record.value(), Guest: w.guest()}
}

// thawSteps are those of a thaw: the guest processes it after a pending freeze, and the agent writes the record if it
// was frozen.
func (r rules) thawSteps(w world) []step {
	after := w
	if w.responded {
		if r.hasty {
			after.thawing.kept = after.agentIntent == releasedIntent
		}
		after.record, after.thawing, after.responded = after.thawing, record{}, false
		return []step{{name: fmt.Sprintf("the agent writes %+v after the thaw", after.record), after: after}}
	}
	if w.pending {
		return nil
	}
	after.responded = w.frozen
	if !w.frozen {
		after.thawing = record{}
	}
	after.thaw()
	return []step{{name: "the guest thaws", after: after}}
}

func (r rules) controllerSteps(w world) []step {
	if w.done {
		return nil
	}
	view := ControllerView{
		Now: clock(w.controllerLate), ID: id, Limit: limit, Intent: w.controllerIntent.value(),
		Record:    w.controllerCopy.value(),
		Snapshots: []Snapshots{NoSnapshot, SomeSnapshots, AllSnapshots}[w.taken], Abandoned: w.abandoned,
	}
	return append(r.controllerStep(w, view), r.refusedStep(w, view)...)
}

// refusedStep is what virt-controller does if the API server refuses the next snapshot: it takes none, and begins no
// freeze.
func (r rules) refusedStep(w world, view ControllerView) []step {
	view.Refused = true
	if action, next := r.controller(view); action != WriteIntent || next.End == Open {
		return nil
	}
	steps := r.controllerStep(w, view)
	for i := range steps {
		steps[i].name, steps[i].fault = "a snapshot is refused, and "+steps[i].name, true
	}
	return steps
}

func (r rules) controllerStep(w world, view ControllerView) []step {
	after := w
	action, next := r.controller(view)
	current := w.controllerIntent == w.intent && w.controllerCopy == w.copy
	switch action {
	case WriteIntent:
		if !current && !r.blind {
			return nil // The API server refuses the write.
		}
		after.intent = openIntent + intent(next.End)
		after.controllerIntent = after.intent
		return []step{{name: fmt.Sprintf("virt-controller writes an intent with end %d", next.End), after: after}}
	case Take:
		after.taken++
		after.broken = w.broken || !w.frozen
		return []step{{name: "a snapshot is taken", after: after}}
	case Done:
		if !current && !r.blind {
			return nil // It reads from the API server first.
		}
		after.done, after.consistent = true, view.Consistent()
		return []step{{name: "virt-controller is done", after: after}}
	default:
		return nil
	}
}
