// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/vireo-project/vireo/test/model"
)

var protocol = rules{source: DecideSource, target: DecideTarget, controller: DecideController}

// variant is a set of rules with options.
type variant struct {
	name string
	rules
}

// variants returns all combinations of options under which the rules must be correct.
func variants(r rules) []variant {
	var out []variant
	for _, locks := range []bool{false, true} {
		for _, postCopy := range []bool{false, true} {
			r.locks, r.postCopy = locks, postCopy
			out = append(out, variant{fmt.Sprintf("locks=%t post-copy=%t", locks, postCopy), r})
		}
	}
	return out
}

// violation describes the safety property that a state violates, empty if there is none.
func violation(w world) string {
	switch {
	case w.source == SourceRunning && w.target == TargetRunning:
		return "two guests run"
	case w.target == TargetRunning && w.stale:
		return "the target runs a guest that is older than its disks"
	case w.record.Final && (w.source == SourceRunning || w.target == TargetRunning):
		return "a guest runs though the VMI has ended"
	case !w.lost && w.record.Final:
		return "the VMI was finished without a fatal fault"
	case !w.lost && (w.source == SourceEnded || w.source == SourceMigrated) && w.target != TargetComplete &&
		w.target != TargetRunning:
		return "the guest is lost without a fatal fault"
	default:
		return ""
	}
}

// settled reports whether a state is a valid end: one guest runs on the owner's node, or none runs and the record is
// final, and no other Pod is left.
func settled(w world) bool {
	switch {
	case w.record.Final:
		return w.sourcePod != PodAlive && w.targetPod != PodAlive
	case w.record.Owner == Target:
		return w.target == TargetRunning && w.sourcePod != PodAlive
	default:
		return w.source == SourceRunning && w.job == noJob && w.record.Failed && w.targetPod != PodAlive
	}
}

// explore enumerates all reachable states, and stops at the first one with a violation.
func explore(r rules) *model.Explored[world] {
	return model.Explore(func(w world, add model.Add[world]) {
		for _, s := range r.steps(w) {
			add(s.name, s.fault, s.after)
		}
	}, violation)
}

// explorations are the results for the protocol itself. They are shared by the tests, as they take several seconds.
var explorations = sync.OnceValue(func() map[string]*model.Explored[world] {
	out := map[string]*model.Explored[world]{}
	for _, r := range variants(protocol) {
		out[r.name] = explore(r.rules)
	}
	return out
})

func TestSafetyProperties(t *testing.T) {
	for name, e := range explorations() {
		if e.Violation != "" {
			t.Errorf("%s: %s:\n  %s\n%+v", name, e.Violation, e.Path(e.At), e.At)
		}
		t.Logf("%s: %d states", name, len(e.States))
	}
}

// TestSettledStateIsReachable checks that each reachable state has a path without further faults to a settled state.
func TestSettledStateIsReachable(t *testing.T) {
	for name, e := range explorations() {
		if e.Violation != "" {
			t.Errorf("%s: %s", name, e.Violation)
			continue
		}
		if w, ok := e.Stuck(settled); ok {
			t.Errorf("%s: no settled state can be reached:\n  %s\n%+v", name, e.Path(w), w)
		}
		settledStates := 0
		for _, w := range e.States {
			if settled(w) {
				settledStates++
			}
		}
		t.Logf("%s: %d states, %d of them settled", name, len(e.States), settledStates)
	}
}

// TestModelDetectsBrokenRules breaks one rule at a time, and expects the model to find a violation or a stuck state.
func TestModelDetectsBrokenRules(t *testing.T) {
	for name, change := range map[string]func(*rules){
		"libvirt starts the target's guest without a command": func(r *rules) { r.resumesItself = true },
		"the source resumes while libvirt has a job of an earlier process": func(r *rules) {
			r.source = func(v SourceView) []Action {
				if v.Domain == SourceSuspended {
					v.Orphaned = false
				}
				return DecideSource(v)
			}
		},
		"a failed migration is started again": func(r *rules) {
			r.source = func(v SourceView) []Action {
				if v.Domain == SourceRunning {
					v.Record.Started, v.Record.Failed = false, false
				}
				return DecideSource(v)
			}
		},
		"the target runs a complete guest before the release": func(r *rules) {
			r.target = func(v TargetView) []Action { v.Released = true; return DecideTarget(v) }
		},
		"the source releases before ownership is transferred": func(r *rules) {
			r.source = func(v SourceView) []Action {
				if v.Domain == SourceSuspended {
					return []Action{Release}
				}
				return DecideSource(v)
			}
		},
		"the source releases before its QEMU has exited": func(r *rules) { r.hasty = true },
		"the controller takes any end of the source's Pod for a migration": func(r *rules) {
			r.controller = func(v ControllerView) []Action {
				if v.SourcePod == PodEnded || v.SourcePod == PodGone {
					v.SourcePod = PodMigrated
				}
				return DecideController(v)
			}
		},
		"the controller ends the VMI with the source's Pod": func(r *rules) {
			r.controller = func(v ControllerView) []Action {
				if v.Record.Owner == Source && v.SourcePod != PodAlive && !v.Record.Final {
					return []Action{Finish}
				}
				return DecideController(v)
			}
		},
		"the source resumes before it records the failure": func(r *rules) {
			r.source = func(v SourceView) []Action {
				actions := DecideSource(v)
				if v.Domain == SourceSuspended && slices.Contains(actions, RecordFailure) {
					return []Action{Resume}
				}
				return actions
			}
		},
		"the source destroys a guest during post-copy": func(r *rules) {
			r.source = func(v SourceView) []Action {
				if v.Domain == SourcePostCopy {
					v.Domain, v.Transferring, v.Orphaned = SourceSuspended, false, false
				}
				return DecideSource(v)
			}
		},
		"post-copy begins before it is recorded": func(r *rules) { r.unrecorded = true },
		"the controller deletes the source's Pod during post-copy": func(r *rules) {
			r.controller = func(v ControllerView) []Action { v.Record.PostCopy = false; return DecideController(v) }
		},
		"the controller deletes the target's Pod based on a stale record": func(r *rules) { r.unread = true },
		"neither the target takes ownership nor the controller transfers it": func(r *rules) {
			r.controller = func(v ControllerView) []Action {
				return slices.DeleteFunc(DecideController(v), func(a Action) bool { return a == TransferOwnership })
			}
			r.target = func(v TargetView) []Action {
				return slices.DeleteFunc(DecideTarget(v), func(a Action) bool { return a == TakeOwnership })
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			broken := protocol
			change(&broken)
			what, path := firstProblem(broken)
			if what == "" {
				t.Fatal("the model finds neither a violation nor a stuck state")
			}
			t.Log(what + ":\n  " + path)
		})
	}
}

// firstProblem returns the first violation or stuck state in any variant of the rules, and the path to it.
func firstProblem(r rules) (what, path string) {
	for _, r := range variants(r) {
		e := explore(r.rules)
		at, what := e.At, e.Violation
		if what == "" {
			if state, ok := e.Stuck(settled); ok {
				what, at = "no settled state can be reached", state
			}
		}
		if what != "" {
			return what + " with " + r.name, e.Path(at)
		}
	}
	return "", ""
}
