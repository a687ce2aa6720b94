// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package model explores all states of a model of several processes, to check what a protocol between them promises.
package model

import (
	"slices"
	"strings"
)

// Add adds a step to a state after it. A fault need not happen.
type Add[W comparable] func(name string, fault bool, after W)

// Explored has all states that can be reached from the zero state, and how each was reached.
type Explored[W comparable] struct {
	// States are the states, nearest first.
	States []W
	// Violation describes a safety property that At violates. Empty if no state violates one; otherwise States has only
	// those that were found before.
	Violation string
	At        W

	from map[W]W
	by   map[W]string
	// calm maps a state to its predecessors by steps that are not faults.
	calm map[W][]W
}

// Explore enumerates the states that can be reached by steps, and stops at the first one with a violation.
func Explore[W comparable](steps func(W, Add[W]), violation func(W) string) *Explored[W] {
	var start W
	e := &Explored[W]{
		States: []W{start}, from: map[W]W{}, by: map[W]string{start: "start"}, calm: map[W][]W{},
	}
	for at := 0; at < len(e.States); at++ {
		w := e.States[at]
		if what := violation(w); what != "" {
			e.Violation, e.At = what, w
			return e
		}
		steps(w, func(name string, fault bool, after W) {
			if !fault {
				e.calm[after] = append(e.calm[after], w)
			}
			if _, known := e.by[after]; !known {
				e.from[after], e.by[after] = w, name
				e.States = append(e.States, after)
			}
		})
	}
	return e
}

// Path lists the steps that lead to a state.
func (e *Explored[W]) Path(w W) string {
	var start W
	var lines []string
	for w != start {
		lines = append(lines, e.by[w])
		w = e.from[w]
	}
	slices.Reverse(lines)
	return strings.Join(lines, "\n  ")
}

// Stuck finds a state from which no settled state can be reached without further faults.
func (e *Explored[W]) Stuck(settled func(W) bool) (W, bool) {
	ends := map[W]bool{}
	var queue []W
	for _, w := range e.States {
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
	for _, w := range e.States {
		if !ends[w] {
			return w, true
		}
	}
	var none W
	return none, false
}
