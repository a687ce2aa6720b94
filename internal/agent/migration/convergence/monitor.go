// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package convergence

import (
	"fmt"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/migration/policy"
)

// Step is what a transfer needs to end.
type Step uint8

const (
	// Continue lets the transfer go on.
	Continue Step = iota
	// RaiseDowntime lets the guest be paused longer at the end.
	RaiseDowntime
	// PostCopy lets the target's guest run and fetch its missing memory.
	PostCopy
	// StopAndCopy pauses the guest until all is transferred.
	StopAndCopy
	// Abort ends the transfer: the guest stays at the source.
	Abort
)

// Monitor decides whether a transfer will end. It lives in memory only: an agent that is restarted continues no transfer.
type Monitor struct {
	rules   Rules
	started time.Time
	mode    v1.MigrationMode
	// postCopyRequested reports whether libvirt was asked for a post-copy. It may start one even if the call failed.
	postCopyRequested bool

	// moved is when something was last transferred, and processed the bytes transferred then.
	moved     time.Time
	processed uint64
	// improved is when the transfer last came nearer to its end.
	improved time.Time
	// pass is the latest pass over memory. It started when passStartSent bytes were sent, and left is the least that was left in it.
	pass, passStartSent, left uint64
	// shortest is how many bytes the shortest pass sent, and shortestIn the pass in which that was measured.
	shortest, shortestIn uint64

	// stall is the state of the stall detection, or nil.
	stall *stall
	// downtime is how long the guest may be paused now, and raisedIn the pass in which it was last raised.
	downtime time.Duration
	raisedIn uint64
}

const (
	// firstDowntime is the first limit of the downtime. With QEMU's default of 300 ms (downtime-limit in qapi/migration.json) QEMU pauses a
	// small guest in its first pass over memory, and sends most of it while the guest is paused.
	firstDowntime = 100 * time.Millisecond
	// downtimeFactor multiplies the limit each time that it is raised.
	downtimeFactor = 3
	// passesUntilRaise is how many passes may not become shorter until the downtime is raised.
	passesUntilRaise = 2
	// passesUntilDisruption is the same before the guest is disrupted, when the downtime cannot be raised.
	passesUntilDisruption = 5
	// shorterBy is the part of a pass (1/16) by which a later one must be shorter to count: sizes vary.
	shorterBy = 16
	// fullThrottle is the most that auto-converge throttles. QEMU's default of max-cpu-throttle.
	fullThrottle = 99
)

// New makes a Monitor for a transfer that starts now.
func New(r Rules, now time.Time) *Monitor {
	c := &Monitor{rules: r, started: now, moved: now, improved: now, mode: v1.MigrationPreCopy}
	first := firstDowntime
	if r.stall != nil {
		c.stall, first = &stall{stallOptions: *r.stall}, stallDowntime
	}
	if r.downtime > 0 {
		c.downtime = min(r.downtime, first)
	}
	return c
}

// Mode returns how the guest is transferred.
func (c *Monitor) Mode() v1.MigrationMode { return c.mode }

// SetMode sets how the guest is transferred, after a step that changed it.
func (c *Monitor) SetMode(mode v1.MigrationMode) { c.mode = mode }

// SetPostCopyRequested records that libvirt is about to be asked for a post-copy. Only then a reported post-copy is believed.
func (c *Monitor) SetPostCopyRequested() { c.postCopyRequested = true }

// Downtime returns how long the guest may be paused now; 0 leaves it to QEMU.
func (c *Monitor) Downtime() time.Duration { return c.downtime }

// observe records the progress.
func (c *Monitor) observe(now time.Time, p *hypervisor.TransferProgress) {
	if processed := p.Memory.Processed + p.Disk.Processed; processed != c.processed {
		c.moved, c.processed = now, processed
	}
	if p.Iteration != c.pass {
		c.endPass(now, p)
	}
	// 0 bytes are also reported before the start, and used when no progress is known. What is left falls within each pass, which is only
	// an improvement if the passes become shorter, or if there is no further pass.
	if left := remaining(p); left > 0 && (left < c.left || c.left == 0) {
		c.left = left
		if c.mode != v1.MigrationPreCopy || passes(c.shortestIn, p) < passesUntilRaise {
			c.improved = now
		}
	}
	// A hostile launcher that reports a post-copy without a request would make its migration one that is never aborted.
	if p.PostCopy && c.postCopyRequested {
		c.mode = v1.MigrationPostCopy
	}
}

// endPass measures the passes that have ended by what they have sent. What is left at a time says little about the size of a pass.
func (c *Monitor) endPass(now time.Time, p *hypervisor.TransferProgress) {
	switch sent := p.Memory.Processed; {
	case c.pass == 0 || p.Iteration < c.pass:
		// A hostile launcher may count backwards.
		c.shortest, c.shortestIn = 0, p.Iteration
	case sent >= c.passStartSent:
		if size := max((sent-c.passStartSent)/(p.Iteration-c.pass), 1); c.shortest == 0 || size < c.shortest-c.shortest/shorterBy {
			c.shortest, c.shortestIn, c.improved = size, p.Iteration, now
		}
	}
	c.pass, c.passStartSent, c.left = p.Iteration, p.Memory.Processed, 0
}

func remaining(p *hypervisor.TransferProgress) uint64 { return p.Memory.Remaining + p.Disk.Remaining }

// Decide records the progress, and returns what to do now and why.
func (c *Monitor) Decide(now time.Time, p *hypervisor.TransferProgress) (Step, string) {
	c.observe(now, p)
	if c.mode == v1.MigrationPostCopy {
		// The target's guest runs: an abort would lose it.
		return Continue, ""
	}
	if c.stall != nil {
		return c.decideWithStallDetection(now, p)
	}
	limit := c.limit(p)
	late := limit > 0 && now.Sub(c.started) > limit
	stuck := c.rules.stuck > 0 && now.Sub(c.improved) > c.rules.stuck
	// If nothing is transferred at all, disrupting the guest does not help.
	dead := c.rules.stuck > 0 && now.Sub(c.moved) > c.rules.stuck
	hopeless := c.hopeless(p)
	switch {
	case (late || stuck || hopeless) && !dead && c.mode == v1.MigrationPreCopy && c.rules.disruption:
		why := Rates(p)
		if late {
			why = fmt.Sprintf("not completed after %s, %s", limit, why)
		} else {
			why = fmt.Sprintf("%s, %s", c.standstill(now, p), why)
		}
		return c.disrupt(why)
	case stuck:
		return Abort, fmt.Sprintf("Live migration stuck for %d seconds and has been aborted", int64(now.Sub(m.improved).Seconds()))
	case late:
		return Abort, fmt.Sprintf("Live migration is not completed after %d seconds and has been aborted", int64(limit.Seconds()))
	case c.mode == v1.MigrationPreCopy && c.downtime < c.rules.downtime && remaining(p) > 0 && passes(max(c.shortestIn, c.raisedIn), p) >= passesUntilRaise:
		c.downtime, c.raisedIn = min(downtimeFactor*c.downtime, c.rules.downtime), p.Iteration
		return RaiseDowntime, fmt.Sprintf("the guest may stand still for %d ms: %s, %s", c.downtime.Milliseconds(), c.standstill(now, p), Rates(p))
	default:
		return Continue, ""
	}
}

// EventAction returns the action of the event about a step. It differs each time that the downtime is raised: events with the same reason
// and action would be merged.
func (c *Monitor) EventAction(s Step) string {
	switch s {
	case RaiseDowntime:
		return fmt.Sprintf("AllowDowntimeOf%dMs", c.downtime.Milliseconds())
	case PostCopy:
		return "PostCopy"
	default:
		return "StopAndCopy"
	}
}

// hopeless reports whether more passes over memory will not help: they do not become shorter, and neither the downtime nor the throttling
// can be raised.
func (c *Monitor) hopeless(p *hypervisor.TransferProgress) bool {
	return c.downtime >= c.rules.downtime && (!c.rules.autoConverge || p.Throttle >= fullThrottle) &&
		p.DirtyBytesPerSecond > p.Memory.BytesPerSecond && passes(max(c.shortestIn, c.raisedIn), p) >= passesUntilDisruption
}

// standstill describes the lack of progress. A transfer of disks alone has no passes.
func (c *Monitor) standstill(now time.Time, p *hypervisor.TransferProgress) string {
	what := fmt.Sprintf("what is left has not become less than %.1f MiB", mib(c.left))
	if c.shortest > 0 {
		what = fmt.Sprintf("no pass over memory was shorter than %.1f MiB", mib(c.shortest))
	}
	since := now.Sub(c.improved).Round(time.Second)
	if n := passes(c.shortestIn, p); n > 0 {
		return fmt.Sprintf("%s for %d passes and %s", what, n, since)
	}
	return fmt.Sprintf("%s for %s", what, since)
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// passes returns how many passes over memory there were since one. A hostile launcher may count backwards.
func passes(since uint64, p *hypervisor.TransferProgress) uint64 {
	return max(p.Iteration, since) - since
}

// Rates describes how fast the guest changes memory and how fast it is sent.
func Rates(p *hypervisor.TransferProgress) string {
	return fmt.Sprintf("the guest changes %d MiB/s and %d MiB/s are copied", p.DirtyBytesPerSecond>>20, p.Memory.BytesPerSecond>>20)
}

// limit is how long the transfer may take: twice as long with a paused guest. 0 is forever.
func (c *Monitor) limit(p *hypervisor.TransferProgress) time.Duration {
	limit := c.limitBySize(p)
	if c.mode == v1.MigrationPaused {
		limit *= 2
	}
	return limit
}

// limitBySize is how long the transfer may take by its size. 0 is forever.
func (c *Monitor) limitBySize(p *hypervisor.TransferProgress) time.Duration {
	maxTotal := uint64(1 << 50)
	if c.rules.maxTotal > 0 {
		maxTotal = min(c.rules.maxTotal, maxTotal)
	}
	size := min(p.Memory.Total, maxTotal) + min(p.Disk.Total, maxTotal)
	return policy.Limit(min(size, maxTotal), c.rules.perGiB)
}

// String implements fmt.Stringer.
func (s Step) String() string {
	switch s {
	case RaiseDowntime:
		return "allow a longer downtime"
	case PostCopy:
		return "post-copy"
	case StopAndCopy:
		return "stop and copy"
	case Abort:
		return "give up"
	case Continue:
		return "go on"
	default:
		return "unknown"
	}
}
