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
		"nothing is said":       {nil, defaults},
		"nothing in particular": {&v1.VMIMConfigurationOptions{ExperimentalMigrationOptions: &v1.ExperimentalMigrationOptions{}}, defaults},
		"all is said": {detector(v1.StallDetectorOptions{
			StallMargin: ptr.To[int64](10), StallProgressTimeout: ptr.To[uint64](5), SwitchoverTimeout: ptr.To[uint64](6), EwmaAlpha: ptr.To("0.2"),
			PrecopyPossibleFactor: ptr.To("3"), PatienceWindowDecayFactor: ptr.To("250m"), SearchLocalMinima: ptr.To(false), CompletionTimeoutFactor: ptr.To("4"),
		}), stallOptions{0.1, 5 * time.Second, 6 * time.Second, 0.2, 3, 0.25, false, 4}},
		"numbers that are none": {detector(v1.StallDetectorOptions{
			EwmaAlpha: ptr.To("x"), PrecopyPossibleFactor: ptr.To(""), PatienceWindowDecayFactor: ptr.To("NaN"), CompletionTimeoutFactor: ptr.To("1e"),
		}), defaults},
		"out of bounds": {detector(v1.StallDetectorOptions{
			StallMargin: ptr.To[int64](-1), StallProgressTimeout: ptr.To[uint64](1 << 63), EwmaAlpha: ptr.To("-1"), PrecopyPossibleFactor: ptr.To("0"),
			PatienceWindowDecayFactor: ptr.To("7"), CompletionTimeoutFactor: ptr.To("1e30"),
		}), stallOptions{0, 365 * 24 * time.Hour, time.Minute, 0.001, 1, 1, true, maxFactor}},
	} {
		if got := stallOptionsOf(tc.config); *got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, *got, tc.want)
		}
	}
}

// bandwidth is that of the copies here, in MiB a second.
const bandwidth = 100

// looksAt are the two looks at a pass over memory: when it begins with some MiB left, and when half of that was sent.
func looksAt(number, sent, left uint64) [2]*hypervisor.TransferProgress {
	look := func(sent, left uint64) *hypervisor.TransferProgress {
		return &hypervisor.TransferProgress{Iteration: number, Memory: hypervisor.TransferAmount{
			Total: gib, Processed: sent << 20, Remaining: left << 20, BytesPerSecond: bandwidth << 20,
		}}
	}
	return [2]*hypervisor.TransferProgress{look(sent, left), look(sent+left/2, left-left/2)}
}

// play has a copy begin a pass with what is left, in MiB, every ten seconds, and returns in which pass the first step is taken.
func play(c *Monitor, left ...uint64) (pass int, got Step, why string) {
	now, sent := c.started, uint64(0)
	for i, n := range left {
		for _, p := range looksAt(uint64(i+1), sent, n) {
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
	pausing := capped
	pausing.disruption = true
	bold := pausing
	bold.postCopy = true
	nearby := func(o *stallOptions) { o.search = false }
	for name, tc := range map[string]struct {
		rules  Rules
		change func(*stallOptions)
		left   []uint64
		pass   int
		want   Step
		why    string
	}{
		"each pass is shorter":                        {rules: capped, left: []uint64{900, 800, 700, 600, 500, 400, 300, 200, 150, 130}},
		"it gets nowhere at 1 s":                      {capped, nil, []uint64{900, 100, 101, 100, 101, 102, 101, 100}, 6, RaiseDowntime, "900 ms"},
		"it gets nowhere at 2 s":                      {capped, nil, []uint64{900, 200, 201, 200, 201, 202, 201, 200}, 6, Abort, "downtime 2020ms exceeds max allowed downtime 900ms"},
		"a factor of 3 is possible":                   {capped, func(o *stallOptions) { o.possible = 3 }, []uint64{900, 200, 201, 200, 201, 202, 201}, 6, RaiseDowntime, ""},
		"it may be disturbed":                         {pausing, nil, []uint64{900, 200, 201, 200, 201, 202, 201}, 6, StopAndCopy, "2020 ms"},
		"it may be disturbed by a post-copy":          {bold, nil, []uint64{900, 200, 201, 200, 201, 202, 201}, 6, PostCopy, ""},
		"it waits for a pass with little left":        {pausing, nil, []uint64{900, 200, 400, 400, 400, 400, 400, 400, 207}, 9, StopAndCopy, ""},
		"it waits for nothing":                        {pausing, nearby, []uint64{900, 200, 400, 400, 400, 400, 400}, 6, StopAndCopy, ""},
		"it makes do with more when patience ends":    {pausing, nil, []uint64{900, 200, 400, 500, 400, 500, 500, 500, 500, 500}, 10, StopAndCopy, "5000 ms"},
		"and with the least of what was seen":         {pausing, nil, []uint64{900, 200, 500, 500, 500, 500, 500, 600, 450, 600, 460}, 11, StopAndCopy, ""},
		"a larger margin finds it where passes fall":  {pausing, func(o *stallOptions) { o.margin = 0.5 }, []uint64{900, 500, 490, 480, 470, 460}, 6, StopAndCopy, ""},
		"a shorter window finds it earlier":           {pausing, func(o *stallOptions) { o.window = 15 * time.Second }, []uint64{900, 200, 201, 200}, 4, StopAndCopy, ""},
		"progress within the window is enough for it": {rules: pausing, left: []uint64{900, 400, 400, 400, 300, 300, 300, 200, 200, 200, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.rules.stall = stallOptionsOf(nil)
			if tc.change != nil {
				tc.change(tc.rules.stall)
			}
			pass, got, why := play(New(tc.rules, time.Unix(0, 0)), tc.left...)
			if pass != tc.pass || got != tc.want || !strings.Contains(why, tc.why) {
				t.Errorf("%s in pass %d (%q), want %s in pass %d (%q)", got, pass, why, tc.want, tc.pass, tc.why)
			}
		})
	}
}

func TestStalledCopyHasADeadline(t *testing.T) {
	r := Rules{downtime: 900 * time.Millisecond, perGiB: time.Hour, stall: stallOptionsOf(nil)}
	c := New(r, time.Unix(0, 0))
	if c.downtime != stallDowntime {
		t.Errorf("the guest may stand still for %s at first", c.downtime)
	}
	if _, got, why := play(c, 900, 100, 101, 100, 101, 102, 101); got != RaiseDowntime || c.downtime != r.downtime {
		t.Fatalf("%s (%q), and the guest may stand still for %s", got, why, c.downtime)
	}
	later := looksAt(9, 9000, 500)[0]
	if got, why := c.Decide(c.stall.deadline, later); got != Continue {
		t.Errorf("%s (%q) before the deadline", got, why)
	}
	if got, why := c.Decide(c.stall.deadline.Add(time.Second), later); got != Abort || !strings.Contains(why, "not completed after") {
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
		"the guest is not to be disturbed": {Rules{}, 100, Abort},
		"the guest may be disturbed":       {Rules{disruption: true}, 100, StopAndCopy},
		// At 100 MiB/s this takes 200 s, and twice 100 s are allowed for all.
		"the rest would take too long": {Rules{disruption: true}, 20000, Abort},
	} {
		tc.rules.perGiB, tc.rules.stall = 100*time.Second, stallOptionsOf(nil)
		c := New(tc.rules, start)
		looks := looksAt(1, 0, tc.left)
		if got, _ := c.Decide(start.Add(99*time.Second), looks[0]); got != Continue {
			t.Errorf("%s: %s before the end", name, got)
		}
		if got, why := c.Decide(start.Add(101*time.Second), looks[1]); got != tc.want {
			t.Errorf("%s: %s (%q), want %s", name, got, why, tc.want)
		}
		if tc.want != StopAndCopy {
			continue
		}
		c.mode = v1.MigrationPaused
		if got, why := c.Decide(start.Add(199*time.Second), looks[1]); got != Continue {
			t.Errorf("%s: %s (%q) while the guest stands still", name, got, why)
		}
		if got, _ := c.Decide(start.Add(201*time.Second), looks[1]); got != Abort {
			t.Errorf("%s: %s at the very end", name, got)
		}
	}
}

// TestWhatIsLeftAtTheBeginningOfAPass has looks in the middle of passes.
func TestWhatIsLeftAtTheBeginningOfAPass(t *testing.T) {
	s := &stall{stallOptions: *stallOptionsOf(nil)}
	for i, tc := range []struct {
		pass, sent, left, want uint64
		began                  bool
	}{
		{1, 100, 900, 900, false}, // Whether it has just begun is not known.
		{1, 600, 400, 400, false},
		{2, 1200, 300, 500, true}, // 400 of the first pass, and 200 of this one.
		{2, 1300, 200, 200, false},
		{4, 1900, 250, 250, true}, // How much of pass 4 was sent is not known.
		{3, 1950, 240, 240, false},
	} {
		left, began := s.observe(&hypervisor.TransferProgress{Iteration: tc.pass, Memory: hypervisor.TransferAmount{Processed: tc.sent, Remaining: tc.left}})
		if left != tc.want || began != tc.began {
			t.Errorf("look %d: %d left, began %t, want %d, %t", i, left, began, tc.want, tc.began)
		}
	}
}

// TestWhatIsRememberedIsBounded has a launcher that begins passes as fast as it can.
func TestWhatIsRememberedIsBounded(t *testing.T) {
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
		t.Errorf("%d and %d passes are remembered", len(s.recent), len(s.since))
	}
}
