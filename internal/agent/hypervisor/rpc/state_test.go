// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"maps"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestPanicsAreCounted(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	web, db := types.NamespacedName{Namespace: "ns", Name: "web"}, types.NamespacedName{Namespace: "ns", Name: "db"}
	p := &panics{}
	expect := func(at time.Time, want map[types.NamespacedName]uint64) {
		t.Helper()
		if got := p.counts(at); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", at, got, want)
		}
	}
	expect(noon, nil)
	p.add(web, noon)
	p.add(web, noon.Add(time.Hour))
	p.add(db, noon)
	expect(noon.Add(time.Hour), map[types.NamespacedName]uint64{web: 2, db: 1})
	expect(noon.Add(panicsKept+time.Minute), map[types.NamespacedName]uint64{web: 2})
	p.add(db, noon.Add(panicsKept+2*time.Hour))
	expect(noon.Add(panicsKept+2*time.Hour), map[types.NamespacedName]uint64{db: 1})
}

func TestTheOldestPanicsAreDropped(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	vmi := func(i int) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: strconv.Itoa(i)} }
	p := &panics{}
	for i := range maxPanicked {
		p.add(vmi(i), noon.Add(time.Duration(i)*time.Second))
	}
	now := noon.Add(time.Hour)
	p.add(vmi(0), now) // not the oldest any more
	p.add(vmi(maxPanicked), now)
	got := p.counts(now)
	if len(got) != maxPanicked || got[vmi(0)] != 2 || got[vmi(1)] != 0 || got[vmi(2)] != 1 || got[vmi(maxPanicked)] != 1 {
		t.Errorf("%d VMIs, %d, %d, %d, %d", len(got), got[vmi(0)], got[vmi(1)], got[vmi(2)], got[vmi(maxPanicked)])
	}
}

func TestNoteStart(t *testing.T) {
	var stopped, runs atomic.Int64
	stopped.Store(1)
	if noteStart(&stopped, &runs); stopped.Load() != 1 {
		t.Errorf("it stopped at 1, and again at %d", stopped.Load())
	}
	runs.Store(2)
	if noteStart(&stopped, &runs); stopped.Load() <= 2 {
		t.Errorf("it ran at 2, and has stopped at %d", stopped.Load())
	}
	if noteStart(&runs, new(atomic.Int64)); runs.Load() != 2 {
		t.Errorf("it ran at 2, and again at %d", runs.Load())
	}
}
