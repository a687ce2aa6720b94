// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package convergence

import (
	"fmt"
	"math"
	"slices"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/quantity"
)

// stallOptions configure the stall detection of the feature gate MigrationStallDetection. The defaults are KubeVirt's
// (staging/src/kubevirt.io/api/core/v1/types.go, StallDetectorOptions).
type stallOptions struct {
	// margin is the part by which the remaining bytes must fall to count as progress, and by which they may exceed the
	// least at switchover.
	margin float64
	// window is how long the remaining bytes may not fall, and the first patience of the search for a good moment.
	window time.Duration
	// switchover is how long the transfer may take after the downtime was raised.
	switchover time.Duration
	// alpha is the weight of the newest bandwidth in its moving average.
	alpha float64
	// possible is the factor by which the expected downtime may exceed the longest allowed one, if the guest must not be
	// disrupted.
	possible float64
	// decay multiplies patience each time that it has passed.
	decay float64
	// search waits for a pass with few remaining bytes before the switchover.
	search bool
	// completion multiplies the time that the transfer may take, for a guest that is disrupted.
	completion float64
}

func stallOptionsOf(c *v1.VMIMConfigurationOptions) *stallOptions {
	o := &stallOptions{
		margin: 0.04, window: 40 * time.Second, switchover: time.Minute, alpha: 0.4, possible: 1.5, decay: 0.5, search: true,
		completion: 2,
	}
	if c == nil || c.ExperimentalMigrationOptions == nil || c.ExperimentalMigrationOptions.StallDetector == nil {
		return o
	}
	d := c.ExperimentalMigrationOptions.StallDetector
	if d.StallMargin != nil {
		o.margin = float64(min(max(*d.StallMargin, 0), 100)) / 100
	}
	if d.StallProgressTimeout != nil {
		o.window = unsignedSeconds(*d.StallProgressTimeout)
	}
	if d.SwitchoverTimeout != nil {
		o.switchover = unsignedSeconds(*d.SwitchoverTimeout)
	}
	if d.SearchLocalMinima != nil {
		o.search = *d.SearchLocalMinima
	}
	setFactor(&o.alpha, d.EwmaAlpha, 0.001, 1)
	setFactor(&o.possible, d.PrecopyPossibleFactor, 1, maxFactor)
	setFactor(&o.decay, d.PatienceWindowDecayFactor, 0, 1)
	setFactor(&o.completion, d.CompletionTimeoutFactor, 1, maxFactor)
	return o
}

// maxFactor bounds the factors: larger ones have the same effect.
const maxFactor = 1000

func unsignedSeconds(n uint64) time.Duration { return seconds(int64(min(n, 1<<40))) }

// setFactor parses a number that a user wrote as a quantity. An invalid one changes nothing; one out of bounds becomes
// the bound.
func setFactor(to *float64, text *string, least, most float64) {
	if text == nil {
		return
	}
	if q, err := quantity.Parse(*text); err == nil {
		*to = min(max(q.AsApproximateFloat64(), least), most)
	}
}

// stall detects that a transfer makes no progress: the remaining bytes at the start of each pass over memory go up and
// down and do not fall. It then finds a good moment to switch over, which is a pass that starts with few of them.
// Source: the enhancement 248 of KubeVirt, and pkg/virt-launcher/virtwrap.
type stall struct {
	stallOptions
	// pass, sent and left are as reported last.
	pass, sent, left uint64
	// bandwidth is the moving average, in bytes a second.
	bandwidth float64
	// recent are the passes that started within the window, each with fewer remaining bytes than the one before.
	recent []passStart
	// old reports whether there were earlier ones, and oldest is the least remaining bytes at the start of one of those.
	old    bool
	oldest uint64
	// stalled reports whether the transfer has stalled. A pass that starts with about best remaining bytes or fewer is a
	// good one to switch over in.
	stalled bool
	best    uint64
	// since are the remaining bytes at the start of each pass since the transfer stalled, sorted, without those that were
	// best already.
	since []uint64
	// patience is how long best stays the same, and relax when it is raised.
	patience time.Duration
	relax    time.Time
	// deadline is when the transfer must have ended after the downtime was raised; zero before.
	deadline time.Time
}

// passStart is the start of a pass over memory.
type passStart struct {
	at   time.Time
	left uint64
}

const (
	// maxBytes bounds the bytes that a launcher reports, and maxPasses how many of its passes are stored.
	maxBytes, maxPasses = 1 << 60, 4096
	// stallDowntime is the limit of the downtime until the transfer stalls. QEMU's default of downtime-limit.
	stallDowntime = 300 * time.Millisecond
)

// observe records the progress. If a pass has started since the last call, it returns the bytes that remained at its
// start: those that remain now, and those that were sent since then.
func (s *stall) observe(p *hypervisor.TransferProgress) (left uint64, began bool) {
	sent, rest := min(p.Memory.Processed, maxBytes)+min(p.Disk.Processed, maxBytes),
		min(p.Memory.Remaining, maxBytes)+min(p.Disk.Remaining, maxBytes)
	left, began = rest, s.pass > 0 && p.Iteration > s.pass
	switch end := s.sent + s.left; {
	case began && p.Iteration == s.pass+1 && sent > end:
		left += sent - end
	case !began && p.Memory.BytesPerSecond > 0:
		sample := float64(p.Memory.BytesPerSecond)
		if s.bandwidth == 0 {
			s.bandwidth = sample
		}
		s.bandwidth += s.alpha * (sample - s.bandwidth)
	}
	s.pass, s.sent, s.left = p.Iteration, sent, rest
	return left, began
}

// begin evaluates the start of a pass, and reports whether this is the moment to act.
func (s *stall) begin(now time.Time, left uint64) bool {
	if s.bandwidth == 0 || !s.deadline.IsZero() {
		return false
	}
	s.remember(now, left)
	switch {
	case s.stalled:
		s.lower(now, left)
	case s.old && float64(left) >= float64(s.oldest)*(1-s.margin):
		s.stalled, s.best = true, s.oldest
		if n := len(s.recent); n > 0 {
			s.best = min(s.best, s.recent[n-1].left)
		}
		s.patience, s.relax = s.window, now.Add(s.window)
	default:
		return false
	}
	return !s.search || float64(left) <= float64(s.best)*(1+s.margin)
}

// remember stores a pass if it can become the one with the least remaining bytes before the window.
func (s *stall) remember(now time.Time, left uint64) {
	for len(s.recent) > 0 && now.Sub(s.recent[0].at) >= s.window {
		if first := s.recent[0].left; !s.old || first < s.oldest {
			s.old, s.oldest = true, first
		}
		s.recent = s.recent[1:]
	}
	n := len(s.recent)
	if s.old && left > s.oldest || n > 0 && left >= s.recent[n-1].left || n >= maxPasses {
		return
	}
	s.recent = append(s.recent, passStart{now, left})
}

// lower accepts the next best of the passes since the transfer stalled, each time that patience has passed.
func (s *stall) lower(now time.Time, left uint64) {
	i, _ := slices.BinarySearch(s.since, left)
	s.since = slices.Insert(s.since, i, left)
	s.since = s.since[:min(len(s.since), maxPasses)]
	if now.Before(s.relax) {
		return
	}
	s.best, s.since = s.since[0], s.since[1:]
	s.patience = time.Duration(float64(s.patience) * s.decay)
	s.relax = now.Add(s.patience)
}

// expected returns how long it takes to send the remaining bytes; it is unknown before a bandwidth was reported.
func (s *stall) expected(left uint64) (time.Duration, bool) {
	if s.bandwidth == 0 {
		return 0, false
	}
	return time.Duration(min(float64(left)/s.bandwidth, (365*24*time.Hour).Seconds()) * float64(time.Second)), true
}

// decideWithStallDetection is Decide with the feature gate.
func (m *Monitor) decideWithStallDetection(now time.Time, p *hypervisor.TransferProgress) (Step, string) {
	s := m.stall
	left, began := s.observe(p)
	if m.rules.stuck > 0 && now.Sub(m.moved) > m.rules.stuck {
		return Abort, fmt.Sprintf("Live migration stuck for %d seconds and has been aborted",
			int64(now.Sub(m.moved).Seconds()))
	}
	limit, spent := m.limitBySize(p), now.Sub(m.started)
	longest := time.Duration(min(float64(limit)*s.completion, math.MaxInt64/2))
	downtime, known := s.expected(left)
	// The guest is not disrupted while the bandwidth is too low to finish in time.
	possible := known && (limit == 0 || spent+downtime <= longest)
	if m.mode == v1.MigrationPreCopy && began && s.begin(now, left) && possible {
		return m.switchOver(now, downtime)
	}
	late, after := limit > 0 && spent > limit, limit
	switch {
	case m.mode != v1.MigrationPreCopy:
		late, after = limit > 0 && spent > longest, longest
	case !s.deadline.IsZero():
		late, after = now.After(s.deadline), s.deadline.Sub(m.started)
	case late && m.rules.disruption && possible:
		return m.disrupt(fmt.Sprintf("not completed after %s, %s", limit, Rates(p)))
	}
	if late {
		return Abort, fmt.Sprintf("Live migration is not completed after %d seconds and has been aborted",
			int64(after.Seconds()))
	}
	return Continue, ""
}

// switchOver decides how a stalled transfer ends, at a good moment.
func (m *Monitor) switchOver(now time.Time, expected time.Duration) (Step, string) {
	s, longest := m.stall, m.rules.downtime
	if longest == 0 {
		longest = stallDowntime
	}
	why := fmt.Sprintf("it has stalled, and the rest takes %d ms", expected.Milliseconds())
	switch {
	case m.rules.disruption:
		return m.disrupt(why)
	case float64(expected) <= float64(longest)*s.possible:
		if m.rules.downtime == 0 {
			s.deadline = now.Add(s.switchover)
			return Continue, "" // QEMU allows as much by itself.
		}
		m.raise = raise{to: longest, deadline: now.Add(s.switchover)}
		return RaiseDowntime, fmt.Sprintf("the guest may be paused for %d ms: %s", longest.Milliseconds(), why)
	default:
		return Abort, fmt.Sprintf(
			"Migration aborted: estimated downtime %dms exceeds max allowed downtime %dms by a factor of more than x%.2f",
			expected.Milliseconds(), longest.Milliseconds(), s.possible)
	}
}

func (m *Monitor) disrupt(why string) (Step, string) {
	if m.rules.postCopy {
		return PostCopy, why
	}
	return StopAndCopy, why
}
