// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package protocol

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

var protocol = rules{source: DecideSource, target: DecideTarget, controller: DecideController}

// variant is rules in a kind of world.
type variant struct {
	name string
	rules
}

// variants are the worlds that rules have to hold in.
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

// explored is every world that can be, and how it came about.
type explored struct {
	from  map[world]world
	by    map[world]string
	order []world
	// calm leads back over what happens without faults.
	calm map[world][]world
}

// wrong says which rule a world breaks.
func wrong(w world) string {
	switch {
	case w.source == SourceRunning && w.target == TargetRunning:
		return "two guests run"
	case w.target == TargetRunning && w.stale:
		return "the target runs a guest that is older than its disks"
	case w.record.Final && (w.source == SourceRunning || w.target == TargetRunning):
		return "a guest runs though the VMI has ended"
	case !w.somethingHasDied && w.record.Final:
		return "the guest was given up though nothing had died"
	case !w.somethingHasDied && (w.source == SourceEnded || w.source == SourceMigrated) && w.target != TargetComplete && w.target != TargetRunning:
		return "the guest is lost though nothing had died"
	default:
		return ""
	}
}

// settled is how it may end: one guest runs where the record says, or none and the record says so, and nothing is left over.
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

// explore enumerates all worlds, and stops at the first that breaks a rule.
func explore(r rules) (*explored, world, string) {
	e := &explored{from: map[world]world{}, by: map[world]string{}, calm: map[world][]world{}}
	start := world{}
	e.by[start], e.order = "start", []world{start}
	for at := 0; at < len(e.order); at++ {
		w := e.order[at]
		if what := wrong(w); what != "" {
			return e, w, what
		}
		for _, s := range r.steps(w) {
			if !s.fault {
				e.calm[s.after] = append(e.calm[s.after], w)
			}
			if _, known := e.by[s.after]; !known {
				e.from[s.after], e.by[s.after] = w, s.name
				e.order = append(e.order, s.after)
			}
		}
	}
	return e, world{}, ""
}

// story tells how a world came about.
func (e *explored) story(w world) string {
	var lines []string
	for w != (world{}) {
		lines = append(lines, e.by[w])
		w = e.from[w]
	}
	slices.Reverse(lines)
	return strings.Join(lines, "\n  ")
}

// explorations are those of the protocol itself, which take a while.
var explorations = sync.OnceValue(func() map[string]exploration {
	out := map[string]exploration{}
	for _, r := range variants(protocol) {
		e, w, what := explore(r.rules)
		out[r.name] = exploration{e, w, what}
	}
	return out
})

// exploration is what explore found.
type exploration struct {
	*explored
	at   world
	what string
}

func TestNeverTwoGuests(t *testing.T) {
	for name, e := range explorations() {
		if e.what != "" {
			t.Errorf("%s: %s:\n  %s\n%+v", name, e.what, e.story(e.at), e.at)
		}
		t.Logf("%s: %d states", name, len(e.order))
	}
}

// TestItEnds: whatever has happened, once nothing more goes wrong there is a way to an end that leaves nothing over.
func TestItEnds(t *testing.T) {
	for name, e := range explorations() {
		if e.what != "" {
			t.Errorf("%s: %s", name, e.what)
			continue
		}
		if w, ok := hopeless(e.explored); ok {
			t.Errorf("%s: no way out of this:\n  %s\n%+v", name, e.story(w), w)
		}
		settledStates := 0
		for _, w := range e.order {
			if settled(w) {
				settledStates++
			}
		}
		t.Logf("%s: %d states, %d of them settled", name, len(e.order), settledStates)
	}
}

// hopeless finds a world from which no end can be reached without something else going wrong.
func hopeless(e *explored) (world, bool) {
	ends := map[world]bool{}
	var queue []world
	for _, w := range e.order {
		if settled(w) {
			ends[w] = true
			queue = append(queue, w)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, before := range e.calm[queue[0]] {
			if !ends[before] {
				ends[before] = true
				queue = append(queue, before)
			}
		}
	}
	for _, w := range e.order {
		if !ends[w] {
			return w, true
		}
	}
	return world{}, false
}

// TestEveryRuleIsNeeded breaks one rule at a time. A model that finds nothing then would prove nothing.
func TestEveryRuleIsNeeded(t *testing.T) {
	for name, change := range map[string]func(*rules){
		"libvirt lets the target's guest run by itself": func(r *rules) { r.resumesItself = true },
		"the source resumes while libvirt has a job of an earlier process": func(r *rules) {
			r.source = func(v SourceView) []Action {
				if v.Domain == SourceSuspended {
					v.Orphaned = false
				}
				return DecideSource(v)
			}
		},
		"a migration that failed is begun again": func(r *rules) {
			r.source = func(v SourceView) []Action {
				if v.Domain == SourceRunning {
					v.Record.Started, v.Record.Failed = false, false
				}
				return DecideSource(v)
			}
		},
		"the target runs what is complete": func(r *rules) {
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
		"the source releases before its QEMU has ended": func(r *rules) { r.hasty = true },
		"the controller takes any end for a migration": func(r *rules) {
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
		"the source resumes before it gives up": func(r *rules) {
			r.source = func(v SourceView) []Action {
				actions := DecideSource(v)
				if v.Domain == SourceSuspended && slices.Contains(actions, RecordFailure) {
					return []Action{Resume}
				}
				return actions
			}
		},
		"the source ends a guest that serves a post-copy": func(r *rules) {
			r.source = func(v SourceView) []Action {
				if v.Domain == SourcePostCopy {
					v.Domain, v.Transferring, v.Orphaned = SourceSuspended, false, false
				}
				return DecideSource(v)
			}
		},
		"a post-copy is begun before it is recorded": func(r *rules) { r.unrecorded = true },
		"the controller deletes a Pod that serves a post-copy": func(r *rules) {
			r.controller = func(v ControllerView) []Action { v.Record.PostCopy = false; return DecideController(v) }
		},
		"the controller deletes the target's Pod by a record that is old": func(r *rules) { r.unread = true },
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
			what, story := complaint(broken)
			if what == "" {
				t.Fatal("nothing goes wrong")
			}
			t.Log(what + ":\n  " + story)
		})
	}
}

// complaint is what is wrong with rules in any of the worlds that they have to hold in.
func complaint(r rules) (what, story string) {
	for _, r := range variants(r) {
		e, w, what := explore(r.rules)
		if what == "" {
			if hopeless, ok := hopeless(e); ok {
				what, w = "no way out of this", hopeless
			}
		}
		if what != "" {
			return what + " with " + r.name, e.story(w)
		}
	}
	return "", ""
}
