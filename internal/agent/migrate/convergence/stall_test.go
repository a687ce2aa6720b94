// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package convergence

import (
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func detector(d v1.StallDetectorOptions) *v1.VMIMConfigurationOptions {
	return &v1.VMIMConfigurationOptions{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{StallDetector: &d}}
}

func TestStallOptions(t *testing.T) {
	defaults := stallOptions{0.04, 40 * time.Second, time.Minute, 0.4, 1.5, 0.5, true, 2}
	for name, tc := range map[string]struct {
		config *v1.VMIMConfigurationOptions
		want   stallOptions
	}{
		"no options":    {nil, defaults},
		"empty options": {&v1.VMIMConfigurationOptions{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{}}, defaults},
		"all options": {detector(v1.StallDetectorOptions{
			StallMargin: ptr.To[int64](10), StallProgressTimeout: ptr.To[uint64](5), SwitchoverTimeout: ptr.To[uint64](6),
			EwmaAlpha:             ptr.To("0.2"),
			PrecopyPossibleFactor: ptr.To("3"), PatienceWindowDecayFactor: ptr.To("250m"), SearchLocalMinima: ptr.To(false),
			CompletionTimeoutFactor: ptr.To("4"),
		}), stallOptions{0.1, 5 * time.Second, 6 * time.Second, 0.2, 3, 0.25, false, 4}},
		"invalid numbers": {detector(v1.StallDetectorOptions{
			EwmaAlpha: ptr.To("x"), PrecopyPossibleFactor: ptr.To(""), PatienceWindowDecayFactor: ptr.To("NaN"),
			CompletionTimeoutFactor: ptr.To("1e"),
		}), defaults},
		"out of bounds": {detector(v1.StallDetectorOptions{
			StallMargin: ptr.To[int64](-1), StallProgressTimeout: ptr.To[uint64](1 << 63), EwmaAlpha: ptr.To("-1"),
			PrecopyPossibleFactor: ptr.To("0"), PatienceWindowDecayFactor: ptr.To("7"), CompletionTimeoutFactor: ptr.To("1e30"),
		}), stallOptions{0, 365 * 24 * time.Hour, time.Minute, 0.001, 1, 1, true, maxFactor}},
	} {
		if got := stallOptionsOf(tc.config); *got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, *got, tc.want)
		}
	}
}

// bandwidth is that of the transfers in this file, in MiB/s.
const bandwidth = 100

// observationsOf returns two observations of a pass over memory: at its start with some MiB left, and when half of
// these were sent.
func observationsOf(number, sent, left uint64) [2]*hypervisor.TransferProgress {
	progress := func(sent, left uint64) *hypervisor.TransferProgress {
		return &hypervisor.TransferProgress{Iteration: number, Memory: hypervisor.TransferAmount{
			Total: gib, Processed: sent << 20, Remaining: left << 20, BytesPerSecond: bandwidth << 20,
		}}
	}
	return [2]*hypervisor.TransferProgress{progress(sent, left), progress(sent+left/2, left-left/2)}
}

// simulate starts a pass with the given remainder in MiB every ten seconds, and returns the first step and its pass.
func simulate(c *Monitor, left ...uint64) (pass int, got Step, why string) {
	now, sent := c.started, uint64(0)
	for i, n := range left {
		for _, p := range observationsOf(uint64(i+1), sent, n) {
			if got, why = c.Decide(now, p); got != Continue {
				return i + 1, got, why
			}
			now = now.Add(5 * time.Second)
		}
		sent += n
	}
	return 0, Continue, ""
}

func TestStall(t *testing.T) {
	capped := Rules{downtime: 900 * time.Millisecond}
	disruptive := capped
	disruptive.disruption = true
	postCopy := disruptive
	postCopy.postCopy = true
	noSearch := func(o *stallOptions) { o.search = false }
	for name, tc := range map[string]struct {
		rules  Rules
		change func(*stallOptions)
		left   []uint64
		pass   int
		want   Step
		why    string
	}{
		"shorter passes":                          {rules: capped, left: []uint64{900, 800, 700, 600, 500, 400, 300, 200, 150, 130}},
		"no progress at 1 s":                      {capped, nil, []uint64{900, 100, 101, 100, 101, 102, 101, 100}, 6, RaiseDowntime, "900 ms"},
		"no progress at 2 s":                      {capped, nil, []uint64{900, 200, 201, 200, 201, 202, 201, 200}, 6, Abort, "downtime 2020ms exceeds max allowed downtime 900ms"},
		"a factor of 3 is possible":               {capped, func(o *stallOptions) { o.possible = 3 }, []uint64{900, 200, 201, 200, 201, 202, 201}, 6, RaiseDowntime, ""},
		"disruption is allowed":                   {disruptive, nil, []uint64{900, 200, 201, 200, 201, 202, 201}, 6, StopAndCopy, "2020 ms"},
		"post-copy is allowed":                    {postCopy, nil, []uint64{900, 200, 201, 200, 201, 202, 201}, 6, PostCopy, ""},
		"waits for a pass with a small remainder": {disruptive, nil, []uint64{900, 200, 400, 400, 400, 400, 400, 400, 207}, 9, StopAndCopy, ""},
		"does not wait without the search":        {disruptive, noSearch, []uint64{900, 200, 400, 400, 400, 400, 400}, 6, StopAndCopy, ""},
		"accepts more after the window":           {disruptive, nil, []uint64{900, 200, 400, 500, 400, 500, 500, 500, 500, 500}, 10, StopAndCopy, "5000 ms"},
		"accepts the smallest remainder so far":   {disruptive, nil, []uint64{900, 200, 500, 500, 500, 500, 500, 600, 450, 600, 460}, 11, StopAndCopy, ""},
		"larger margin":                           {disruptive, func(o *stallOptions) { o.margin = 0.5 }, []uint64{900, 500, 490, 480, 470, 460}, 6, StopAndCopy, ""},
		"shorter window":                          {disruptive, func(o *stallOptions) { o.window = 15 * time.Second }, []uint64{900, 200, 201, 200}, 4, StopAndCopy, ""},
		"progress within the window":              {rules: disruptive, left: []uint64{900, 400, 400, 400, 300, 300, 300, 200, 200, 200, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.rules.stall = stallOptionsOf(nil)
			if tc.change != nil {
				tc.change(tc.rules.stall)
			}
			pass, got, why := simulate(New(tc.rules, time.Unix(0, 0)), tc.left...)
			if pass != tc.pass || got != tc.want || !strings.Contains(why, tc.why) {
				t.Errorf("%s in pass %d (%q), want %s in pass %d (%q)", got, pass, why, tc.want, tc.pass, tc.why)
			}
		})
	}
}

func TestStalledTransferHasDeadline(t *testing.T) {
	r := Rules{downtime: 900 * time.Millisecond, perGiB: time.Hour, stall: stallOptionsOf(nil)}
	c := New(r, time.Unix(0, 0))
	if c.downtime != stallDowntime {
		t.Errorf("the first downtime is %s", c.downtime)
	}
	if _, got, why := simulate(c, 900, 100, 101, 100, 101, 102, 101); got != RaiseDowntime ||
		c.RaisedDowntime() != r.downtime {
		t.Fatalf("%s (%q), and the downtime is %s", got, why, c.RaisedDowntime())
	}
	if c.downtime != stallDowntime || !c.stall.deadline.IsZero() {
		t.Errorf("before libvirt has accepted it, the downtime is %s and the deadline %s", c.downtime, c.stall.deadline)
	}
	c.SetDowntimeRaised()
	later := observationsOf(9, 9000, 500)[0]
	if got, why := c.Decide(c.stall.deadline, later); got != Continue {
		t.Errorf("%s (%q) before the deadline", got, why)
	}
	if got, why := c.Decide(c.stall.deadline.Add(time.Second), later); got != Abort ||
		!strings.Contains(why, "not completed after") {
		t.Errorf("%s (%q) after the deadline", got, why)
	}
}

func TestCompletionWithStallDetection(t *testing.T) {
	start := time.Unix(0, 0)
	for name, tc := range map[string]struct {
		rules Rules
		left  uint64
		want  Step
	}{
		"disruption is not allowed": {Rules{}, 100, Abort},
		"disruption is allowed":     {Rules{disruption: true}, 100, StopAndCopy},
		// At 100 MiB/s this takes 200 s, and twice 100 s are allowed for all.
		"the rest would take too long": {Rules{disruption: true}, 20000, Abort},
	} {
		tc.rules.perGiB, tc.rules.stall = 100*time.Second, stallOptionsOf(nil)
		c := New(tc.rules, start)
		observations := observationsOf(1, 0, tc.left)
		if got, _ := c.Decide(start.Add(99*time.Second), observations[0]); got != Continue {
			t.Errorf("%s: %s before the end", name, got)
		}
		if got, why := c.Decide(start.Add(101*time.Second), observations[1]); got != tc.want {
			t.Errorf("%s: %s (%q), want %s", name, got, why, tc.want)
		}
		if tc.want != StopAndCopy {
			continue
		}
		c.mode = v1.MigrationPaused
		if got, why := c.Decide(start.Add(199*time.Second), observations[1]); got != Continue {
			t.Errorf("%s: %s (%q) while the guest is paused", name, got, why)
		}
		if got, _ := c.Decide(start.Add(201*time.Second), observations[1]); got != Abort {
			t.Errorf("%s: %s after the deadline", name, got)
		}
	}
}

// The observations are within passes, not at their start.
func TestRemainderAtStartOfPass(t *testing.T) {
	s := &stall{stallOptions: *stallOptionsOf(nil)}
	for i, tc := range []struct {
		pass, sent, left, want uint64
		started                bool
	}{
		{1, 100, 900, 900, false}, // It is unknown whether the pass has just started.
		{1, 600, 400, 400, false},
		{2, 1200, 300, 500, true}, // 400 of the first pass, and 200 of this one.
		{2, 1300, 200, 200, false},
		{4, 1900, 250, 250, true}, // It is unknown how much of pass 4 was sent.
		{3, 1950, 240, 240, false},
	} {
		left, started := s.observe(
			&hypervisor.TransferProgress{Iteration: tc.pass,
				Memory: hypervisor.TransferAmount{Processed: tc.sent, Remaining: tc.left}})
		if left != tc.want || started != tc.started {
			t.Errorf("observation %d: %d left, started %t, want %d, %t", i, left, started, tc.want, tc.started)
		}
	}
}

// The launcher starts passes as fast as it can.
func TestRecordedPassesAreBounded(t *testing.T) {
	s := &stall{stallOptions: *stallOptionsOf(nil), bandwidth: 1}
	now := time.Unix(0, 0)
	for i := range uint64(3 * maxPasses) {
		s.begin(now, 1<<40-i)
	}
	s.stalled, s.best, s.relax = true, 1, now.Add(time.Hour)
	for i := range uint64(3 * maxPasses) {
		s.begin(now, 1<<40-i)
	}
	if len(s.recent) > maxPasses || len(s.since) > maxPasses {
		t.Errorf("%d and %d passes are recorded", len(s.recent), len(s.since))
	}
}
