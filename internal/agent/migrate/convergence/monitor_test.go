// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package convergence

import (
	"math"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

const gib = 1 << 30

// at returns the progress of a transfer of two GiB.
func at(processed, remaining uint64) *hypervisor.TransferProgress {
	return &hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 2 * gib, Processed: processed,
		Remaining: remaining}}
}

func TestRules(t *testing.T) {
	defaults := Rules{perGiB: 150 * time.Second, stuck: 150 * time.Second}
	for name, tc := range map[string]struct {
		options *v1.VMIMConfigurationOptions
		want    Rules
	}{
		"no options":    {nil, defaults},
		"empty options": {&v1.VMIMConfigurationOptions{}, defaults},
		"post-copy is a disruption": {&v1.VMIMConfigurationOptions{AllowPostCopy: ptr.To(true)},
			Rules{perGiB: defaults.perGiB, stuck: defaults.stuck, postCopy: true, disruption: true}},
		"post-copy without other disruptions": {&v1.VMIMConfigurationOptions{AllowPostCopy: ptr.To(true), AllowWorkloadDisruption: ptr.To(false)},
			Rules{perGiB: defaults.perGiB, stuck: defaults.stuck, postCopy: true}},
		"no limits": {&v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: ptr.To[int64](0), ProgressTimeout: ptr.To[int64](-1)}, Rules{}},
	} {
		if got := rulesOf(tc.options); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestRulesWithoutPostCopy(t *testing.T) {
	for _, tc := range []struct{ rules, want Rules }{
		{Rules{postCopy: true, disruption: true}, Rules{}},
		{Rules{disruption: true}, Rules{disruption: true}},
		{Rules{}, Rules{}},
	} {
		if got := tc.rules.WithoutPostCopy(); got != tc.want {
			t.Errorf("%+v: got %+v", tc.rules, got)
		}
	}
}

func TestConvergence(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	strict := Rules{perGiB: 10 * time.Second, stuck: 5 * time.Second}
	paused := strict
	paused.disruption = true
	postCopy := paused
	postCopy.postCopy = true
	// observation is one observation of the transfer.
	type observation struct {
		after    time.Duration
		progress *hypervisor.TransferProgress
		want     Step
	}
	for name, tc := range map[string]struct {
		rules        Rules
		mode         v1.MigrationMode
		observations []observation
	}{
		"progress": {strict, v1.MigrationPreCopy, []observation{{time.Second, at(1, 9), Continue}, {19 * time.Second, at(8, 2), Continue}}},
		"completion timeout": {strict, v1.MigrationPreCopy, []observation{{15 * time.Second, at(1, 9), Continue}, {19 * time.Second, at(8, 2), Continue},
			{21 * time.Second, at(9, 2), Abort}}},
		"progress timeout": {strict, v1.MigrationPreCopy, []observation{{time.Second, at(1, 9), Continue}, {6 * time.Second, at(1, 9), Continue},
			{7 * time.Second, at(1, 9), Abort}}},
		"data sent again is no progress": {strict, v1.MigrationPreCopy, []observation{{4 * time.Second, at(1, 9), Continue}, {8 * time.Second, at(2, 9), Continue},
			{12 * time.Second, at(3, 9), Abort}}},
		"less remaining data is progress once": {strict, v1.MigrationPreCopy, []observation{{4 * time.Second, at(1, 9), Continue}, {8 * time.Second, at(2, 8), Continue},
			{12 * time.Second, at(3, 9), Continue}, {14 * time.Second, at(4, 8), Abort}}},
		"progress timeout, with disruption allowed": {paused, v1.MigrationPreCopy, []observation{{4 * time.Second, at(1, 9), Continue}, {8 * time.Second, at(2, 9), Continue},
			{12 * time.Second, at(3, 9), StopAndCopy}}},
		"completion timeout, with disruption allowed": {paused, v1.MigrationPreCopy, []observation{{18 * time.Second, at(1, 9), Continue}, {21 * time.Second, at(2, 9), StopAndCopy}}},
		"a paused guest has the time again":           {paused, v1.MigrationPaused, []observation{{38 * time.Second, at(1, 9), Continue}, {41 * time.Second, at(2, 9), Abort}}},
		"completion timeout, with post-copy allowed":  {postCopy, v1.MigrationPreCopy, []observation{{18 * time.Second, at(1, 9), Continue}, {21 * time.Second, at(2, 9), PostCopy}}},
		"a post-copy is not aborted":                  {postCopy, v1.MigrationPostCopy, []observation{{time.Hour, at(1, 9), Continue}, {2 * time.Hour, at(1, 9), Continue}}},
		"no post-copy over a dead connection":         {postCopy, v1.MigrationPreCopy, []observation{{time.Second, at(1, 9), Continue}, {7 * time.Second, at(1, 9), Abort}}},
		"without limits":                              {Rules{}, v1.MigrationPreCopy, []observation{{time.Hour, at(1, 9), Continue}, {48 * time.Hour, at(1, 9), Continue}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(tc.rules, start)
			c.mode = tc.mode
			for _, l := range tc.observations {
				got, why := c.Decide(start.Add(l.after), l.progress)
				if got != l.want || (why == "") != (got == Continue) {
					t.Fatalf("after %s: %s (%q), want %s", l.after, got, why, l.want)
				}
			}
		})
	}
}

// in returns the progress in a pass over the memory, with a rate at which the guest changes memory, after some bytes
// were sent.
func in(pass, sent, dirty uint64, throttle int) *hypervisor.TransferProgress {
	p := at(sent, 90)
	p.Iteration, p.DirtyBytesPerSecond, p.Memory.BytesPerSecond, p.Throttle = pass, dirty, 100<<20, throttle
	return p
}

func TestDowntimeIsRaisedStepByStep(t *testing.T) {
	fast, slow := uint64(200<<20), uint64(50<<20)
	capped := Rules{downtime: 900 * time.Millisecond}
	disruptive := capped
	disruptive.disruption, disruptive.postCopy = true, true
	throttled := disruptive
	throttled.autoConverge = true
	left := func(p *hypervisor.TransferProgress, n uint64) *hypervisor.TransferProgress {
		p.Memory.Remaining = n
		return p
	}
	type observation struct {
		progress *hypervisor.TransferProgress
		want     Step
		downtime time.Duration
	}
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		rules        Rules
		observations []observation
	}{
		"passes become shorter": {capped, []observation{{in(1, 9, fast, 0), Continue, 100 * ms}, {in(2, 1000, fast, 0), Continue, 100 * ms},
			{in(3, 1900, fast, 0), Continue, 100 * ms}, {in(6, 4300, fast, 0), Continue, 100 * ms}, {in(10, 7100, fast, 0), Continue, 100 * ms}}},
		"passes do not become shorter": {capped, []observation{{in(1, 9, fast, 0), Continue, 100 * ms}, {in(2, 1000, fast, 0), Continue, 100 * ms}, {in(3, 1100, fast, 0), Continue, 100 * ms},
			{in(4, 1200, fast, 0), Continue, 100 * ms}, {in(5, 1297, fast, 0), RaiseDowntime, 300 * ms}, {in(6, 1400, fast, 0), Continue, 300 * ms},
			{in(7, 1500, fast, 0), RaiseDowntime, 900 * ms}, {in(20, 2800, fast, 0), Continue, 900 * ms}}},
		"a small remainder within a pass": {capped, []observation{{in(1, 9, fast, 0), Continue, 100 * ms}, {left(in(2, 1000, fast, 0), 1), Continue, 100 * ms},
			{in(3, 1800, fast, 0), Continue, 100 * ms}, {in(4, 2500, fast, 0), Continue, 100 * ms}, {in(5, 3100, fast, 0), Continue, 100 * ms}}},
		"never above the limit": {Rules{downtime: 60 * ms}, []observation{{in(1, 9, fast, 0), Continue, 60 * ms}, {in(9, 900, fast, 0), Continue, 60 * ms}}},
		"not without a limit":   {Rules{}, []observation{{in(1, 9, fast, 0), Continue, 0}, {in(9, 900, fast, 0), Continue, 0}, {in(19, 1900, fast, 0), Continue, 0}}},
		"then post-copy": {disruptive, []observation{{in(3, 90, fast, 0), Continue, 100 * ms}, {in(4, 190, fast, 0), Continue, 100 * ms}, {in(6, 390, fast, 0), RaiseDowntime, 300 * ms},
			{in(8, 590, fast, 0), RaiseDowntime, 900 * ms}, {in(12, 990, fast, 0), Continue, 900 * ms}, {in(13, 1090, fast, 0), PostCopy, 900 * ms}}},
		"post-copy only after the largest throttle": {throttled, []observation{{in(3, 90, fast, 0), Continue, 100 * ms}, {in(4, 190, fast, 0), Continue, 100 * ms}, {in(6, 390, fast, 0), RaiseDowntime, 300 * ms},
			{in(8, 590, fast, 20), RaiseDowntime, 900 * ms}, {in(33, 3090, fast, 90), Continue, 900 * ms}, {in(34, 3190, fast, 99), PostCopy, 900 * ms}}},
		"no post-copy if the guest is slower than the link": {disruptive, []observation{{in(3, 90, slow, 0), Continue, 100 * ms}, {in(4, 190, slow, 0), Continue, 100 * ms}, {in(6, 390, slow, 0), RaiseDowntime, 300 * ms},
			{in(8, 590, slow, 0), RaiseDowntime, 900 * ms}, {in(33, 3090, slow, 0), Continue, 900 * ms}}},
		"not when nothing remains":          {capped, []observation{{in(1, 9, fast, 0), Continue, 100 * ms}, {left(in(9, 900, fast, 0), 0), Continue, 100 * ms}, {left(in(19, 1900, fast, 0), 0), Continue, 100 * ms}}},
		"a launcher with decreasing passes": {capped, []observation{{in(9, 90, fast, 0), Continue, 100 * ms}, {in(1, 9, fast, 0), Continue, 100 * ms}, {in(2, 5, fast, 0), Continue, 100 * ms}}},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			c := New(tc.rules, start)
			for i, l := range tc.observations {
				got, why := c.Decide(start.Add(time.Duration(i)*time.Second), l.progress)
				if got == RaiseDowntime {
					c.SetDowntimeRaised()
				}
				if got != l.want || (why == "") != (got == Continue) || c.downtime != l.downtime {
					t.Fatalf("observation %d: %s (%q) and %s, want %s and %s", i, got, why, c.downtime, l.want, l.downtime)
				}
			}
		})
	}
}

// Otherwise a guest would be disrupted, or its migration aborted, which the allowed downtime would have completed.
func TestDowntimeThatLibvirtRefusedIsNotRaised(t *testing.T) {
	fast := uint64(200 << 20)
	start := time.Now()
	c := New(Rules{downtime: 200 * time.Millisecond, disruption: true}, start)
	for i := range uint64(30) {
		got, why := c.Decide(start.Add(time.Duration(i)*time.Second), in(i+1, 100*i, fast, 0))
		if want := i >= 3; (got == RaiseDowntime) != want || !want && got != Continue ||
			c.Downtime() != 100*time.Millisecond {
			t.Fatalf("pass %d: %s (%q), and the downtime is %s", i+1, got, why, c.Downtime())
		}
	}
	if c.RaisedDowntime() != 200*time.Millisecond {
		t.Errorf("the raised downtime is %s", c.RaisedDowntime())
	}
	c.SetDowntimeRaised()
	if got, why := c.Decide(start.Add(31*time.Second), in(31, 3100, fast, 0)); got != Continue ||
		c.Downtime() != 200*time.Millisecond {
		t.Errorf("once it is accepted: %s (%q), and the downtime is %s", got, why, c.Downtime())
	}
}

func TestTransferWithoutConvergenceIsAborted(t *testing.T) {
	const limit = 10 * time.Second
	// falling returns the progress within a pass, in which the remainder falls.
	falling := func(pass, sent uint64, after time.Duration) *hypervisor.TransferProgress {
		p := in(pass, sent, 0, 0)
		p.Memory.Remaining = 1000 - uint64(after/time.Second)
		return p
	}
	for name, tc := range map[string]struct {
		mode v1.MigrationMode
		// size returns how many bytes a pass sends, and lasts is its duration.
		size  func(pass uint64) uint64
		lasts time.Duration
		want  Step
	}{
		"passes that become shorter":        {v1.MigrationPreCopy, func(n uint64) uint64 { return 10000 - 300*n }, 5 * time.Second, Continue},
		"one long pass":                     {v1.MigrationPreCopy, func(uint64) uint64 { return 1000 }, 59 * time.Second, Continue},
		"passes that do not become shorter": {v1.MigrationPreCopy, func(uint64) uint64 { return 1000 }, 5 * time.Second, Abort},
		"the last pass of a paused guest":   {v1.MigrationPaused, func(uint64) uint64 { return 1000 }, 59 * time.Second, Continue},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			c := New(Rules{stuck: limit}, start)
			pass, sent, since := uint64(1), uint64(9), time.Duration(0)
			if tc.mode == v1.MigrationPaused {
				// The guest was paused because passes did not become shorter.
				for range 9 {
					c.Decide(start, in(pass, sent, 0, 0))
					pass, sent = pass+1, sent+1000
				}
				c.mode = tc.mode
			}
			got := Continue
			for now := time.Duration(0); now < 2*time.Minute && got == Continue; now += time.Second {
				if now-since >= tc.lasts {
					since, sent, pass = now, sent+tc.size(pass), pass+1
				}
				if tc.mode == v1.MigrationPaused && pass > 10 {
					break
				}
				got, _ = c.Decide(start.Add(now), falling(pass, sent+uint64((now-since)/time.Second), now-since))
			}
			if got != tc.want {
				t.Errorf("got %s in pass %d, want %s", got, pass, tc.want)
			}
		})
	}
}

// The call may fail although libvirt has started the post-copy.
func TestRequestedPostCopyIsBelieved(t *testing.T) {
	start := time.Now()
	c := New(Rules{perGiB: time.Second}, start)
	c.postCopyRequested = true
	p := at(1, 9)
	p.PostCopy = true
	if got, _ := c.Decide(start.Add(time.Hour), p); got != Continue || c.mode != v1.MigrationPostCopy {
		t.Errorf("got %s in mode %s", got, c.mode)
	}
}

func TestFalseReportsDoNotPreventAbort(t *testing.T) {
	start := time.Now()
	claims := at(1, 9)
	claims.PostCopy = true
	large := &hypervisor.TransferProgress{
		Memory: hypervisor.TransferAmount{Total: 1 << 60, Remaining: 9},
		Disk:   hypervisor.TransferAmount{Total: math.MaxUint64, Remaining: 9},
	}
	for name, p := range map[string]*hypervisor.TransferProgress{"post-copy not requested": claims, "too large": large} {
		c := New(Rules{perGiB: time.Second, maxTotal: 5 * gib}, start)
		if got, _ := c.Decide(start.Add(4*time.Second), p); name == "too large" && got != Continue {
			t.Errorf("%s: %s before the timeout of the largest possible amount", name, got)
		}
		if got, _ := c.Decide(start.Add(6*time.Second), p); got != Abort {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// The API server merges events with the same reason and action.
func TestStepsHaveDifferentEventActions(t *testing.T) {
	c := New(Rules{downtime: time.Second}, time.Now())
	seen := map[string]bool{c.EventAction(PostCopy): true, c.EventAction(StopAndCopy): true}
	for _, c.downtime = range []time.Duration{300 * time.Millisecond, 900 * time.Millisecond, time.Second} {
		seen[c.EventAction(RaiseDowntime)] = true
	}
	if len(seen) != 5 {
		t.Error(seen)
	}
}

func TestStandstillMessage(t *testing.T) {
	start := time.Now()
	for want, p := range map[string]*hypervisor.TransferProgress{
		"9.0 MiB for 7s":              {Disk: hypervisor.TransferAmount{Remaining: 9 << 20}},
		"9.0 MiB for 2 passes and 7s": {Memory: hypervisor.TransferAmount{Remaining: 9 << 20}, Iteration: 2},
	} {
		c := New(Rules{}, start)
		c.left = 9 << 20
		if got := c.standstill(start.Add(7*time.Second), p); !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
