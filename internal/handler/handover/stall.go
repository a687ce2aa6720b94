// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// stallOptions are how a copy is judged with the feature gate MigrationStallDetection. The defaults are KubeVirt's
// (staging/src/kubevirt.io/api/core/v1/types.go, StallDetectorOptions).
type stallOptions struct {
	// margin is the part by which what is left must fall to be progress, and may be above the least when the guest is switched over.
	margin float64
	// window is how long what is left may not fall, and patience with the search for a good moment to begin with.
	window time.Duration
	// switchover is how long the end may take once a longer downtime is allowed.
	switchover time.Duration
	// alpha is the weight of the newest bandwidth in its moving average.
	alpha float64
	// possible is by how much the downtime to expect may exceed the longest that is allowed, as long as the guest is not to be disturbed.
	possible float64
	// decay is what patience is multiplied by each time that it has ended.
	decay float64
	// search waits for a pass with little left before the guest is switched over.
	search bool
	// completion multiplies the time that the whole may take, for a guest that is disturbed.
	completion float64
}

func stallOptionsOf(c *v1.VMIMConfigurationOptions) *stallOptions {
	o := &stallOptions{
		margin: 0.04, window: 40 * time.Second, switchover: time.Minute, alpha: 0.4, possible: 1.5, decay: 0.5, search: true, completion: 2,
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
	setFactor(&o.possible, d.PrecopyPossibleFactor, 1, mostFactor)
	setFactor(&o.decay, d.PatienceWindowDecayFactor, 0, 1)
	setFactor(&o.completion, d.CompletionTimeoutFactor, 1, mostFactor)
	return o
}

// mostFactor is as good as any number that is larger.
const mostFactor = 1000

func unsignedSeconds(n uint64) time.Duration { return seconds(int64(min(n, 1<<40))) }

// setFactor takes a number that a user wrote as a quantity. What is no number changes nothing, and what is out of bounds is the bound.
func setFactor(to *float64, text *string, least, most float64) {
	if text == nil {
		return
	}
	if q, err := resource.ParseQuantity(*text); err == nil {
		*to = min(max(q.AsApproximateFloat64(), least), most)
	}
}

// stall finds out that a copy gets nowhere, and when it is best switched over then: what is left at the beginning of each pass over
// memory does not fall, but goes up and down. Source: the enhancement 248 of KubeVirt, and pkg/virt-launcher/virtwrap.
type stall struct {
	stallOptions
	// pass, sent and left are as reported last.
	pass, sent, left uint64
	// bandwidth is the moving average, in bytes a second.
	bandwidth float64
	// recent are passes that began within the window, each with less left than the one before.
	recent []passBegin
	// old says that there were earlier ones, and oldest is the least that was left at the beginning of one of those.
	old    bool
	oldest uint64
	// stalled says that the copy has stalled. best is what a pass may begin with for the guest to be switched over in it.
	stalled bool
	best    uint64
	// since is what was left at the beginning of each pass since then and has not been best yet, sorted.
	since []uint64
	// patience is how long best stays as it is, and relax when it ends.
	patience time.Duration
	relax    time.Time
	// deadline is when the copy must have ended because a longer downtime is allowed.
	deadline time.Time
}

// passBegin is the beginning of a pass over memory.
type passBegin struct {
	at   time.Time
	left uint64
}

const (
	// mostBytes bounds what a launcher says that there is to copy, and mostPasses how many passes of a launcher are kept in mind.
	mostBytes, mostPasses = 1 << 60, 4096
	// stallDowntime is how long a guest may stand still until its copy stalls. QEMU's default of downtime-limit.
	stallDowntime = 300 * time.Millisecond
)

// see takes in how far the copy is, and says what was left when the pass began, if one has begun since the last time. What has been
// sent of it until now is what was sent beyond the end of the pass before.
func (s *stall) see(p *hypervisor.CopyProgress) (left uint64, began bool) {
	sent, rest := min(p.Memory.Processed, mostBytes)+min(p.Disk.Processed, mostBytes), min(p.Memory.Remaining, mostBytes)+min(p.Disk.Remaining, mostBytes)
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

// begin judges a pass by what was left at its beginning, and says whether this is the moment to do something.
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

// remember keeps what can become the least that was left before the window.
func (s *stall) remember(now time.Time, left uint64) {
	for len(s.recent) > 0 && now.Sub(s.recent[0].at) >= s.window {
		if first := s.recent[0].left; !s.old || first < s.oldest {
			s.old, s.oldest = true, first
		}
		s.recent = s.recent[1:]
	}
	n := len(s.recent)
	if s.old && left > s.oldest || n > 0 && left >= s.recent[n-1].left || n >= mostPasses {
		return
	}
	s.recent = append(s.recent, passBegin{now, left})
}

// lower makes do with the next best of what was seen since the copy stalled, each time that patience ends.
func (s *stall) lower(now time.Time, left uint64) {
	i, _ := slices.BinarySearch(s.since, left)
	s.since = slices.Insert(s.since, i, left)
	s.since = s.since[:min(len(s.since), mostPasses)]
	if now.Before(s.relax) {
		return
	}
	s.best, s.since = s.since[0], s.since[1:]
	s.patience = time.Duration(float64(s.patience) * s.decay)
	s.relax = now.Add(s.patience)
}

// expected is how long it takes to send what is left. It is not known before there was a bandwidth.
func (s *stall) expected(left uint64) (time.Duration, bool) {
	if s.bandwidth == 0 {
		return 0, false
	}
	return time.Duration(min(float64(left)/s.bandwidth, (365*24*time.Hour).Seconds()) * float64(time.Second)), true
}

// judgeStall says what is to be done now, and why, with the feature gate.
func (c *convergence) judgeStall(now time.Time, p *hypervisor.CopyProgress) (step, string) {
	s := c.stall
	left, began := s.see(p)
	if c.rules.stuck > 0 && now.Sub(c.moved) > c.rules.stuck {
		return giveUp, fmt.Sprintf("Live migration stuck for %d seconds and has been aborted", int64(now.Sub(c.moved).Seconds()))
	}
	limit, spent := c.sized(p), now.Sub(c.began)
	longest := time.Duration(min(float64(limit)*s.completion, math.MaxInt64/2))
	downtime, known := s.expected(left)
	// A link that has just become slow is not the moment at which a guest is disturbed.
	possible := known && (limit == 0 || spent+downtime <= longest)
	if c.mode == v1.MigrationPreCopy && began && s.begin(now, left) && possible {
		return c.switchOver(now, downtime)
	}
	late, after := limit > 0 && spent > limit, limit
	switch {
	case c.mode != v1.MigrationPreCopy:
		late, after = limit > 0 && spent > longest, longest
	case !s.deadline.IsZero():
		late, after = now.After(s.deadline), s.deadline.Sub(c.began)
	case late && c.rules.disruption && possible:
		return c.disturb(fmt.Sprintf("not completed after %s, %s", limit, rates(p)))
	}
	if late {
		return giveUp, fmt.Sprintf("Live migration is not completed after %d seconds and has been aborted", int64(after.Seconds()))
	}
	return goOn, ""
}

// switchOver ends a copy that has stalled, at a good moment.
func (c *convergence) switchOver(now time.Time, expected time.Duration) (step, string) {
	s, longest := c.stall, c.rules.downtime
	if longest == 0 {
		longest = stallDowntime
	}
	why := fmt.Sprintf("it has stalled, and the rest takes %d ms", expected.Milliseconds())
	switch {
	case c.rules.disruption:
		return c.disturb(why)
	case float64(expected) <= float64(longest)*s.possible:
		s.deadline = now.Add(s.switchover)
		if c.rules.downtime == 0 {
			return goOn, "" // QEMU allows as much by itself.
		}
		c.downtime = longest
		return allowMore, fmt.Sprintf("the guest may stand still for %d ms: %s", longest.Milliseconds(), why)
	default:
		return giveUp, fmt.Sprintf("Migration aborted: estimated downtime %dms exceeds max allowed downtime %dms by a factor of more than x%.2f",
			expected.Milliseconds(), longest.Milliseconds(), s.possible)
	}
}

func (c *convergence) disturb(why string) (step, string) {
	if c.rules.postCopy {
		return postCopy, why
	}
	return stopAndCopy, why
}
