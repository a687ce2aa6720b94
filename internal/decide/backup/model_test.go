// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"slices"
	"testing"

	"github.com/vireo-project/vireo/test/model"
)

// ids are the two backups of the model, one after the other. 0 is none.
var ids = []string{"", "a", "b"}

// world is a state of the model: one guest, of which two backups are requested one after the other.
type world struct {
	// wanted is the intent's backup in the VMI's status, and canceled whether it is canceled. seen and seenCanceled are
	// what the agent has read last.
	wanted, seen           uint8
	canceled, seenCanceled bool
	// of and stage are the record in the domain's metadata.
	of    uint8
	stage Stage
	// active is the backup of libvirt's job, and pending that of a request that libvirt has not processed yet.
	active, pending uint8
	// result is that of the last job, of whichever backup.
	result JobState
	// images are the backups whose images exist, and complete those that libvirt has copied.
	images   [3]bool
	complete [3]bool
	// refused is set in the agent's memory after libvirt has refused to begin, and once is the backup that it has
	// requested, unless a request to begin it was lost.
	refused bool
	once    uint8
	// full is set if the record says so, which was an incremental one; activeFull and copiedFull say the same of the job
	// and of the images.
	full, activeFull, pendingFull bool
	copiedFull                    [3]bool

	// pulls are the backups that are pulls, and served those that QEMU has served until the agent ended them because they
	// were canceled.
	pulls, served [3]bool
	// ending is set in the record before the agent ends a canceled pull, and short in one of a pull that has no room.
	ending, short bool
	// noRoom means that the scratch files of the active pull cannot grow enough.
	noRoom bool
	// wasCanceled are the backups that virt-controller has canceled, and shown those of which the record has said that
	// they are served.
	wasCanceled, shown [3]bool
}

// noRoom is the problem of a pull that has no room.
const noRoom = "no room"

type rules func(View) (Action, Record)

func (w world) view() View {
	v := View{
		Record: Record{ID: ids[w.of], Stage: w.stage, Pull: w.pulls[w.of], Canceled: w.ending}, Images: w.images[w.of] &&
			!w.pulls[w.of],
		Foreign: w.active != 0 && w.active != w.of && (w.pulls[w.active] || w.pulls[w.of]), Only: w.of != 0 && w.once == w.of,
	}
	v.Changes.Checkpoints = map[string][]string{"c": nil}
	if w.of != 0 && !w.full {
		v.Record.Since = "c"
	}
	if w.short {
		v.Record.Problem = noRoom
	}
	if w.noRoom {
		v.NoRoom = noRoom
	}
	if w.seen != 0 {
		v.Intent = &Intent{ID: ids[w.seen], Canceled: w.seenCanceled, Pull: w.pulls[w.seen], Checkpoint: "k", Since: "c"}
	}
	switch {
	case w.active != 0:
		v.Job.State = JobActive
	case w.result != JobNone:
		v.Job = Job{State: w.result, Problem: "it failed"}
	}
	if w.refused {
		v.Problem = "libvirt refuses"
	}
	return v
}

func (w world) recorded(r Record) world {
	if r.Canceled && !w.ending {
		// What the record says is true if the job is the backup's now.
		w.served[w.of], w.copiedFull[w.of] = w.active == w.of, w.activeFull
	}
	w.stage, w.of, w.refused, w.full = r.Stage, 0, false, !r.Incremental()
	w.ending, w.short = r.Canceled, r.Problem == noRoom
	for i, id := range ids {
		if id == r.ID {
			w.of = uint8(i)
		}
	}
	w.shown[w.of] = w.shown[w.of] ||
		w.pulls[w.of] && w.stage == Running && w.active != w.of && !w.ending && !w.short && !w.complete[w.of]
	return w
}

func (r rules) steps(w world, add model.Add[world]) {
	r.act(w, add)
	w.libvirt(add)
	w.controller(add)
	next := w
	next.seen, next.seenCanceled = w.wanted, w.canceled
	add("the agent reads the VMI", false, next)
	next = w
	next.seen, next.seenCanceled, next.refused, next.once = 0, false, false, 0
	add("the agent is restarted and reads an old VMI", true, next)
}

// act is the agent's next action, and what may happen to it.
func (r rules) act(w world, add model.Add[world]) {
	action, record := r(w.view())
	next := w
	switch action {
	case Request:
		next.result = JobNone
		add("the agent ends between the discarded result and the record", true, next)
		next = next.recorded(record)
		next.once = next.of
		add("the agent requests", false, next)
	case Write:
		add("the agent writes "+string(record.Stage.Name()), false, w.recorded(record))
	case Begin:
		next.active, next.activeFull, next.images[w.of] = w.of, w.full, true
		add("the agent begins", false, next)
		next = w
		next.refused = true
		add("libvirt refuses", true, next)
		next = w
		next.pending, next.pendingFull, next.once = w.of, w.full, 0
		add("the agent begins, and loses the connection", true, next)
	case Abort:
		add("the agent aborts", false, w.fails())
	case Wait:
	}
}

func (w world) libvirt(add model.Add[world]) {
	next := w
	switch {
	case w.active != 0 && w.pulls[w.active]:
		add("somebody else ends the pull", true, w.fails())
		next.noRoom = true
		add("the claim fills up", true, next)
	case w.active != 0:
		next.active, next.result = 0, JobSucceeded
		next.complete[w.active], next.copiedFull[w.active] = true, w.activeFull
		add("the job succeeds", false, next)
		add("the job fails", true, w.fails())
	}
	if w.active == 0 && w.result != JobNone && w.stage == Running {
		next = w
		next.result = JobNone
		add("libvirt is restarted, and forgets the result", true, next)
	}
	if w.pending != 0 {
		next = w
		next.pending = 0
		if w.active == 0 {
			next.active, next.activeFull, next.images[w.pending] = w.pending, w.pendingFull, true
		}
		add("libvirt processes a request of a lost connection", false, next)
	}
}

// fails ends the job without success: libvirt removes the images. It reports each pull that has ended as a success.
func (w world) fails() world {
	w.result, w.images[w.active] = JobFailed, false
	if w.pulls[w.active] {
		w.result = JobSucceeded
	}
	w.active, w.noRoom = 0, false
	return w
}

func (w world) controller(add model.Add[world]) {
	next := w
	ended := w.of == w.wanted && w.stage >= Succeeded
	switch {
	case w.wanted == 0:
		w.request(1, add)
	case !w.canceled && !ended:
		next.canceled, next.wasCanceled[w.wanted] = true, true
		add("virt-controller cancels", !w.pulls[w.wanted], next)
	case w.wanted == 1 && ended:
		w.request(2, add)
	}
}

func (w world) request(id uint8, add model.Add[world]) {
	w.wanted, w.canceled = id, false
	add("virt-controller requests the copy "+ids[id], false, w)
	w.pulls[id] = true
	add("virt-controller requests the pull "+ids[id], false, w)
}

// violation describes the safety property that a state violates.
func violation(w world) string {
	switch pull := w.pulls[w.of]; {
	case w.stage == Succeeded && !pull && !w.complete[w.of]:
		return "a backup is reported as complete that was not copied"
	case w.stage == Succeeded && pull && !w.served[w.of]:
		return "a pull is reported as complete that was not served until it was canceled"
	case w.stage == Succeeded && pull && !w.wasCanceled[w.of]:
		return "a pull is reported as complete that was not canceled"
	case w.shown[w.of]:
		return "a pull is reported as running that is not served"
	}
	if w.stage == Succeeded && w.full && !w.copiedFull[w.of] {
		return "a backup is reported as a full one that has only what has changed"
	}
	return ""
}

func settled(w world) bool {
	return w.wanted == 2 && w.of == 2 && w.stage >= Succeeded && w.active == 0 && w.pending == 0
}

func TestModel(t *testing.T) {
	e := model.Explore(rules(Decide).steps, violation)
	if e.Violation != "" {
		t.Fatalf("%s:\n  %s\n%+v", e.Violation, e.Path(e.At), e.At)
	}
	if w, found := e.Stuck(settled); found {
		t.Fatalf("no settled state can be reached:\n  %s\n%+v", e.Path(w), w)
	}
	for name, done := range map[string]func(world) bool{
		"the copies":            func(w world) bool { return w.complete[1] && w.complete[2] },
		"the pulls":             func(w world) bool { return w.served[1] && w.served[2] },
		"the copy and the pull": func(w world) bool { return w.complete[1] && w.served[2] },
	} {
		if !slices.ContainsFunc(e.States, func(w world) bool { return settled(w) && w.stage == Succeeded && done(w) }) {
			t.Errorf("%s never succeed", name)
		}
	}
	t.Logf("%d states", len(e.States))
}

// TestModelDetectsBrokenRules breaks one rule at a time, and expects the model to find a violation or a stuck state.
func TestModelDetectsBrokenRules(t *testing.T) {
	for name, broken := range map[string]rules{
		"the images are not looked for": func(v View) (Action, Record) {
			v.Images = true
			return Decide(v)
		},
		"a job that libvirt does not know has succeeded": func(v View) (Action, Record) {
			action, next := Decide(v)
			if next.Stage == Failed && v.Job.State == JobNone {
				next.Stage = Succeeded
			}
			return action, next
		},
		"a job that was aborted has succeeded": func(v View) (Action, Record) {
			if v.Job.State == JobFailed {
				v.Job.State, v.Images = JobSucceeded, true
			}
			return Decide(v)
		},
		"a request that was lost does not matter": func(v View) (Action, Record) {
			v.Only = true
			return Decide(v)
		},
		"a pull has succeeded if libvirt reports it": func(v View) (Action, Record) {
			action, next := Decide(v)
			if next.Pull && next.Stage == Failed && v.Job.State == JobSucceeded {
				next.Stage = Succeeded
			}
			return action, next
		},
		"a canceled pull has succeeded before its job has ended": func(v View) (Action, Record) {
			if v.Record.Pull && v.canceled() && !v.Record.Ended() {
				v.Record.Canceled, v.Job.State = true, JobNone
			}
			return Decide(v)
		},
		"a pull goes on without room": func(v View) (Action, Record) {
			if v.Job.State == JobActive && v.NoRoom != "" {
				return Wait, v.Record
			}
			return Decide(v)
		},
		"whose job it is does not matter": func(v View) (Action, Record) {
			v.Foreign = false
			return Decide(v)
		},
		"a pull is canceled if nobody wants it": func(v View) (Action, Record) {
			if v.Intent == nil && v.Record.Pull && v.Record.Stage == Running {
				v.Intent = &Intent{ID: v.Record.ID, Pull: true, Canceled: true}
			}
			return Decide(v)
		},
		"a refusal is forgotten": func(v View) (Action, Record) {
			v.Problem = ""
			action, next := Decide(v)
			if action == Begin {
				return Wait, v.Record
			}
			return action, next
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := model.Explore(broken.steps, violation)
			at, what := e.At, e.Violation
			if what == "" {
				var found bool
				if at, found = e.Stuck(settled); !found {
					t.Fatal("the model finds neither a violation nor a stuck state")
				}
				what = "no settled state can be reached"
			}
			t.Log(what + ":\n  " + e.Path(at))
		})
	}
}
