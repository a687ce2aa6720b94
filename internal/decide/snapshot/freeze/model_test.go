// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package freeze

import (
	"slices"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/test/model"
)

var protocol = rules{agent: DecideAgent, controller: DecideController}

// violation describes the safety property that a state violates, empty if there is none.
func violation(w world) string {
	switch {
	case w.done && w.consistent && w.broken:
		return "a snapshot is reported as consistent, and is not"
	case w.frozen && w.record.value().Ended():
		return "the guest is frozen and nothing will thaw it"
	case w.done && w.intent == openIntent:
		return "virt-controller is done, and the guest may stay frozen until the deadline"
	default:
		return ""
	}
}

// settled reports whether a state is a valid end.
func settled(w world) bool {
	return w.done && !w.frozen && !w.pending && w.record.value().Ended() && (w.taken == disks || w.abandoned)
}

// explore enumerates all reachable states, and stops at the first one with a violation.
func explore(r rules) *model.Explored[world] {
	return model.Explore(func(w world, add model.Add[world]) {
		for _, s := range r.steps(w) {
			add(s.name, s.fault, s.after)
		}
	}, violation)
}

func TestModel(t *testing.T) {
	e := explore(protocol)
	if e.Violation != "" {
		t.Fatalf("%s:\n  %s\n%+v", e.Violation, e.Path(e.At), e.At)
	}
	if w, found := e.Stuck(settled); found {
		t.Fatalf("no settled state can be reached:\n  %s\n%+v", e.Path(w), w)
	}
	consistent := 0
	for _, w := range e.States {
		if settled(w) && w.consistent {
			consistent++
		}
	}
	if consistent == 0 {
		t.Error("no snapshot is ever consistent")
	}
	t.Logf("%d states, %d consistent ends", len(e.States), consistent)
}

// TestWithoutFaultsTheSnapshotIsConsistent checks that a freeze without faults and expired deadlines ends with a
// consistent snapshot.
func TestWithoutFaultsTheSnapshotIsConsistent(t *testing.T) {
	w := world{}
	for range 100 {
		steps := slices.DeleteFunc(protocol.steps(w),
			func(s step) bool { return s.fault || strings.Contains(s.name, "deadline") })
		if len(steps) == 0 {
			break
		}
		w = steps[0].after
	}
	if !settled(w) || !w.consistent {
		t.Errorf("ended with %+v", w)
	}
}

// brokenRules break one rule each.
var brokenRules = map[string]func(*rules){
	"the agent decides after the thaw whether the guest was released": func(r *rules) { r.hasty = true },
	"the agent freezes a guest twice for one intent": func(r *rules) {
		r.agent = func(v AgentView) (AgentAction, Record) {
			if v.Record.Stage == Frozen && v.Guest == GuestThawed && v.ending() == Open {
				return Freeze, v.Record
			}
			return DecideAgent(v)
		}
	},
	"the agent forgets a freeze that has ended": func(r *rules) {
		r.agent = func(v AgentView) (AgentAction, Record) {
			if v.Record.Ended() {
				v.Record = Record{}
			}
			return DecideAgent(v)
		}
	},
	"the agent takes an intent that it cannot read for released": func(r *rules) {
		r.agent = func(v AgentView) (AgentAction, Record) {
			if v.Intent == nil {
				v.Intent = &Intent{ID: v.Record.ID, Deadline: v.Record.Deadline, End: Release}
			}
			return DecideAgent(v)
		}
	},
	"neither side ends a freeze at the deadline": func(r *rules) {
		r.agent = func(v AgentView) (AgentAction, Record) {
			v.Now = early
			return DecideAgent(v)
		}
		r.controller = func(v ControllerView) (ControllerAction, *Intent) {
			action, next := DecideController(v)
			if action == WriteIntent && v.Intent != nil {
				return Await, nil
			}
			return action, next
		}
	},
	"the agent freezes before it writes a record": func(r *rules) {
		r.agent = func(v AgentView) (AgentAction, Record) {
			action, next := DecideAgent(v)
			if action == Write && next.Stage == Requested && v.Guest == GuestThawed {
				return Freeze, v.Record
			}
			return action, next
		}
	},
	"the agent gives up a freeze that the guest may still process": func(r *rules) {
		r.agent = func(v AgentView) (AgentAction, Record) {
			action, next := DecideAgent(v)
			if action == Thaw && v.Record.Stage == Requested {
				return Write, next
			}
			return action, next
		}
	},
	"virt-controller takes snapshots without waiting for the freeze": func(r *rules) {
		r.controller = func(v ControllerView) (ControllerAction, *Intent) {
			action, next := DecideController(v)
			if action == Await && v.Intent.End == Open {
				return Take, nil
			}
			return action, next
		}
	},
	"virt-controller releases though the freeze came too late": func(r *rules) {
		r.controller = func(v ControllerView) (ControllerAction, *Intent) {
			action, next := DecideController(v)
			if next != nil && next.End == Cancel && v.Snapshots != AllSnapshots && !v.Abandoned {
				return Take, nil
			}
			return action, next
		}
	},
	"virt-controller releases the guest when a snapshot is refused": func(r *rules) {
		r.controller = func(v ControllerView) (ControllerAction, *Intent) {
			action, next := DecideController(v)
			if v.Refused && next != nil && next.End == Cancel {
				next.End = Release
			}
			return action, next
		}
	},
	"virt-controller does not cancel at the deadline": func(r *rules) {
		r.controller = func(v ControllerView) (ControllerAction, *Intent) {
			v.Now = early
			return DecideController(v)
		}
		r.agent = func(AgentView) (AgentAction, Record) { return Wait, Record{} }
	},
	"virt-controller finishes on stale reads": func(r *rules) {
		r.blind = true
	},
}

// TestModelDetectsBrokenRules breaks one rule at a time, and expects the model to find a violation or a stuck state.
func TestModelDetectsBrokenRules(t *testing.T) {
	for name, change := range brokenRules {
		t.Run(name, func(t *testing.T) {
			broken := protocol
			change(&broken)
			e := explore(broken)
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
