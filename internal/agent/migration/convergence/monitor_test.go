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

// at is what a copy of two GiB looks like.
func at(processed, remaining uint64) *hypervisor.TransferProgress {
	return &hypervisor.TransferProgress{Memory: hypervisor.TransferAmount{Total: 2 * gib, Processed: processed, Remaining: remaining}}
}

func TestRules(t *testing.T) {
	defaults := Rules{perGiB: 150 * time.Second, stuck: 150 * time.Second}
	for name, tc := range map[string]struct {
		options *v1.VMIMConfigurationOptions
		want    Rules
	}{
		"nothing is said":       {nil, defaults},
		"nothing in particular": {&v1.VMIMConfigurationOptions{}, defaults},
		"post-copy is a disruption": {&v1.VMIMConfigurationOptions{AllowPostCopy: ptr.To(true)},
			Rules{perGiB: defaults.perGiB, stuck: defaults.stuck, postCopy: true, disruption: true}},
		"unless that is forbidden": {&v1.VMIMConfigurationOptions{AllowPostCopy: ptr.To(true), AllowWorkloadDisruption: ptr.To(false)},
			Rules{perGiB: defaults.perGiB, stuck: defaults.stuck, postCopy: true}},
		"for ever": {&v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: ptr.To[int64](0), ProgressTimeout: ptr.To[int64](-1)}, Rules{}},
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
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	strict := Rules{perGiB: 10 * time.Second, stuck: 5 * time.Second}
	patient := strict
	patient.disruption = true
	bold := patient
	bold.postCopy = true
	// look is one observation of the copy.
	type look struct {
		after    time.Duration
		progress *hypervisor.TransferProgress
		want     Step
	}
	for name, tc := range map[string]struct {
		rules Rules
		mode  v1.MigrationMode
		looks []look
	}{
		"it gets on": {strict, v1.MigrationPreCopy, []look{{time.Second, at(1, 9), Continue}, {19 * time.Second, at(8, 2), Continue}}},
		"it takes too long": {strict, v1.MigrationPreCopy, []look{{15 * time.Second, at(1, 9), Continue}, {19 * time.Second, at(8, 2), Continue},
			{21 * time.Second, at(9, 2), Abort}}},
		"nothing arrives": {strict, v1.MigrationPreCopy, []look{{time.Second, at(1, 9), Continue}, {6 * time.Second, at(1, 9), Continue},
			{7 * time.Second, at(1, 9), Abort}}},
		"what is copied anew is no progress": {strict, v1.MigrationPreCopy, []look{{4 * time.Second, at(1, 9), Continue}, {8 * time.Second, at(2, 9), Continue},
			{12 * time.Second, at(3, 9), Abort}}},
		"less is, once": {strict, v1.MigrationPreCopy, []look{{4 * time.Second, at(1, 9), Continue}, {8 * time.Second, at(2, 8), Continue},
			{12 * time.Second, at(3, 9), Continue}, {14 * time.Second, at(4, 8), Abort}}},
		"a guest that is too quick may stand still": {patient, v1.MigrationPreCopy, []look{{4 * time.Second, at(1, 9), Continue}, {8 * time.Second, at(2, 9), Continue},
			{12 * time.Second, at(3, 9), StopAndCopy}}},
		"the guest may stand still":        {patient, v1.MigrationPreCopy, []look{{18 * time.Second, at(1, 9), Continue}, {21 * time.Second, at(2, 9), StopAndCopy}}},
		"it gets as long again":            {patient, v1.MigrationPaused, []look{{38 * time.Second, at(1, 9), Continue}, {41 * time.Second, at(2, 9), Abort}}},
		"the rest may follow":              {bold, v1.MigrationPreCopy, []look{{18 * time.Second, at(1, 9), Continue}, {21 * time.Second, at(2, 9), PostCopy}}},
		"a post-copy is never given up":    {bold, v1.MigrationPostCopy, []look{{time.Hour, at(1, 9), Continue}, {2 * time.Hour, at(1, 9), Continue}}},
		"a link that is dead is not saved": {bold, v1.MigrationPreCopy, []look{{time.Second, at(1, 9), Continue}, {7 * time.Second, at(1, 9), Abort}}},
		"without limits":                   {Rules{}, v1.MigrationPreCopy, []look{{time.Hour, at(1, 9), Continue}, {48 * time.Hour, at(1, 9), Continue}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := New(tc.rules, began)
			c.mode = tc.mode
			for _, l := range tc.looks {
				got, why := c.Decide(began.Add(l.after), l.progress)
				if got != l.want || (why == "") != (got == Continue) {
					t.Fatalf("after %s: %s (%q), want %s", l.after, got, why, l.want)
				}
			}
		})
	}
}

// in is an observation in one of the passes over the memory of a guest that changes it as quickly as it says, when some bytes were sent.
func in(pass, sent, dirty uint64, throttle int) *hypervisor.TransferProgress {
	p := at(sent, 90)
	p.Iteration, p.DirtyBytesPerSecond, p.Memory.BytesPerSecond, p.Throttle = pass, dirty, 100<<20, throttle
	return p
}

func TestTheGuestIsAllowedToStandStillStepByStep(t *testing.T) {
	quick, slow := uint64(200<<20), uint64(50<<20)
	capped := Rules{downtime: 900 * time.Millisecond}
	bold := capped
	bold.disruption, bold.postCopy = true, true
	throttled := bold
	throttled.autoConverge = true
	left := func(p *hypervisor.TransferProgress, n uint64) *hypervisor.TransferProgress {
		p.Memory.Remaining = n
		return p
	}
	type look struct {
		progress *hypervisor.TransferProgress
		want     Step
		downtime time.Duration
	}
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		rules Rules
		looks []look
	}{
		"not while passes become shorter": {capped, []look{{in(1, 9, quick, 0), Continue, 100 * ms}, {in(2, 1000, quick, 0), Continue, 100 * ms},
			{in(3, 1900, quick, 0), Continue, 100 * ms}, {in(6, 4300, quick, 0), Continue, 100 * ms}, {in(10, 7100, quick, 0), Continue, 100 * ms}}},
		"when they do not": {capped, []look{{in(1, 9, quick, 0), Continue, 100 * ms}, {in(2, 1000, quick, 0), Continue, 100 * ms}, {in(3, 1100, quick, 0), Continue, 100 * ms},
			{in(4, 1200, quick, 0), Continue, 100 * ms}, {in(5, 1297, quick, 0), RaiseDowntime, 300 * ms}, {in(6, 1400, quick, 0), Continue, 300 * ms},
			{in(7, 1500, quick, 0), RaiseDowntime, 900 * ms}, {in(20, 2800, quick, 0), Continue, 900 * ms}}},
		"how little is left when one looks means nothing": {capped, []look{{in(1, 9, quick, 0), Continue, 100 * ms}, {left(in(2, 1000, quick, 0), 1), Continue, 100 * ms},
			{in(3, 1800, quick, 0), Continue, 100 * ms}, {in(4, 2500, quick, 0), Continue, 100 * ms}, {in(5, 3100, quick, 0), Continue, 100 * ms}}},
		"no longer than it may":      {Rules{downtime: 60 * ms}, []look{{in(1, 9, quick, 0), Continue, 60 * ms}, {in(9, 900, quick, 0), Continue, 60 * ms}}},
		"never when nothing is said": {Rules{}, []look{{in(1, 9, quick, 0), Continue, 0}, {in(9, 900, quick, 0), Continue, 0}, {in(19, 1900, quick, 0), Continue, 0}}},
		"and then disturbed": {bold, []look{{in(3, 90, quick, 0), Continue, 100 * ms}, {in(4, 190, quick, 0), Continue, 100 * ms}, {in(6, 390, quick, 0), RaiseDowntime, 300 * ms},
			{in(8, 590, quick, 0), RaiseDowntime, 900 * ms}, {in(12, 990, quick, 0), Continue, 900 * ms}, {in(13, 1090, quick, 0), PostCopy, 900 * ms}}},
		"not before it was slowed down": {throttled, []look{{in(3, 90, quick, 0), Continue, 100 * ms}, {in(4, 190, quick, 0), Continue, 100 * ms}, {in(6, 390, quick, 0), RaiseDowntime, 300 * ms},
			{in(8, 590, quick, 20), RaiseDowntime, 900 * ms}, {in(33, 3090, quick, 90), Continue, 900 * ms}, {in(34, 3190, quick, 99), PostCopy, 900 * ms}}},
		"not when it is slow": {bold, []look{{in(3, 90, slow, 0), Continue, 100 * ms}, {in(4, 190, slow, 0), Continue, 100 * ms}, {in(6, 390, slow, 0), RaiseDowntime, 300 * ms},
			{in(8, 590, slow, 0), RaiseDowntime, 900 * ms}, {in(33, 3090, slow, 0), Continue, 900 * ms}}},
		"never when nothing is left":       {capped, []look{{in(1, 9, quick, 0), Continue, 100 * ms}, {left(in(9, 900, quick, 0), 0), Continue, 100 * ms}, {left(in(19, 1900, quick, 0), 0), Continue, 100 * ms}}},
		"a launcher that counts backwards": {capped, []look{{in(9, 90, quick, 0), Continue, 100 * ms}, {in(1, 9, quick, 0), Continue, 100 * ms}, {in(2, 5, quick, 0), Continue, 100 * ms}}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			c := New(tc.rules, began)
			for i, l := range tc.looks {
				got, why := c.Decide(began.Add(time.Duration(i)*time.Second), l.progress)
				if got != l.want || (why == "") != (got == Continue) || c.downtime != l.downtime {
					t.Fatalf("look %d: %s (%q) and %s, want %s and %s", i, got, why, c.downtime, l.want, l.downtime)
				}
			}
		})
	}
}

func TestACopyThatGetsNoNearerToItsEndIsGivenUp(t *testing.T) {
	const limit = 10 * time.Second
	// falling is a pass in which less and less is left.
	falling := func(pass, sent uint64, after time.Duration) *hypervisor.TransferProgress {
		p := in(pass, sent, 0, 0)
		p.Memory.Remaining = 1000 - uint64(after/time.Second)
		return p
	}
	for name, tc := range map[string]struct {
		mode v1.MigrationMode
		// size is how much each pass sends, and lasts how long.
		size  func(pass uint64) uint64
		lasts time.Duration
		want  Step
	}{
		"passes that become shorter":             {v1.MigrationPreCopy, func(n uint64) uint64 { return 10000 - 300*n }, 5 * time.Second, Continue},
		"one that takes long":                    {v1.MigrationPreCopy, func(uint64) uint64 { return 1000 }, 59 * time.Second, Continue},
		"passes that do not":                     {v1.MigrationPreCopy, func(uint64) uint64 { return 1000 }, 5 * time.Second, Abort},
		"the last one, while the guest is still": {v1.MigrationPaused, func(uint64) uint64 { return 1000 }, 59 * time.Second, Continue},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			c := New(Rules{stuck: limit}, began)
			pass, sent, since := uint64(1), uint64(9), time.Duration(0)
			if tc.mode == v1.MigrationPaused {
				// Passes that did not become shorter were why.
				for range 9 {
					c.Decide(began, in(pass, sent, 0, 0))
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
				got, _ = c.Decide(began.Add(now), falling(pass, sent+uint64((now-since)/time.Second), now-since))
			}
			if got != tc.want {
				t.Errorf("got %s in pass %d, want %s", got, pass, tc.want)
			}
		})
	}
}

// The call that begins it may fail, and libvirt begin it all the same.
func TestAPostCopyThatWasAskedForIsOne(t *testing.T) {
	began := time.Now()
	c := New(Rules{perGiB: time.Second}, began)
	c.postCopyRequested = true
	p := at(1, 9)
	p.PostCopy = true
	if got, _ := c.Decide(began.Add(time.Hour), p); got != Continue || c.mode != v1.MigrationPostCopy {
		t.Errorf("got %s in mode %s", got, c.mode)
	}
}

func TestALauncherDoesNotKeepItsMigrationFromEnding(t *testing.T) {
	began := time.Now()
	claims := at(1, 9)
	claims.PostCopy = true
	large := &hypervisor.TransferProgress{
		Memory: hypervisor.TransferAmount{Total: 1 << 60, Remaining: 9}, Disk: hypervisor.TransferAmount{Total: math.MaxUint64, Remaining: 9},
	}
	for name, p := range map[string]*hypervisor.TransferProgress{"a post-copy that nobody began": claims, "more than there can be": large} {
		c := New(Rules{perGiB: time.Second, maxTotal: 5 * gib}, began)
		if got, _ := c.Decide(began.Add(4*time.Second), p); name == "more than there can be" && got != Continue {
			t.Errorf("%s: %s while there is time for what there can be", name, got)
		}
		if got, _ := c.Decide(began.Add(6*time.Second), p); got != Abort {
			t.Errorf("%s: got %s", name, got)
		}
	}
}

// Events with the same reason and action are one for the API.
func TestEachStepIsAnActionOfItsOwn(t *testing.T) {
	c := New(Rules{downtime: time.Second}, time.Now())
	seen := map[string]bool{c.EventAction(PostCopy): true, c.EventAction(StopAndCopy): true}
	for _, c.downtime = range []time.Duration{300 * time.Millisecond, 900 * time.Millisecond, time.Second} {
		seen[c.EventAction(RaiseDowntime)] = true
	}
	if len(seen) != 5 {
		t.Error(seen)
	}
}

func TestStandstillInWords(t *testing.T) {
	began := time.Now()
	for want, p := range map[string]*hypervisor.TransferProgress{
		"9.0 MiB for 7s":              {Disk: hypervisor.TransferAmount{Remaining: 9 << 20}},
		"9.0 MiB for 2 passes and 7s": {Memory: hypervisor.TransferAmount{Remaining: 9 << 20}, Iteration: 2},
	} {
		c := New(Rules{}, began)
		c.left = 9 << 20
		if got := c.standstill(began.Add(7*time.Second), p); !strings.HasSuffix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
