// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package convergence decides what a migration's transfer needs to end: a longer downtime, a disruption of the guest,
// or to be aborted. It decides on the progress that the launcher reports, which it does not trust.
package convergence

import (
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/migration/policy"
)

// Step is a step by which a transfer ends sooner, or Continue.
type Step uint8

const (
	// Continue changes nothing.
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

// Monitor decides whether a transfer will end. It is in memory only: a restarted agent continues no transfer.
type Monitor struct {
	rules   Rules
	started time.Time
	mode    v1.MigrationMode
	// postCopyRequested reports whether a post-copy was requested from libvirt. It may start one even if the call failed.
	postCopyRequested bool

	// moved is when something was last transferred, and processed the bytes transferred then.
	moved     time.Time
	processed uint64
	// improved is when the transfer last came nearer to its end.
	improved time.Time
	// pass is the latest pass over memory. It started when passStartSent bytes were sent, and left is the least that was
	// left in it.
	pass, passStartSent, left uint64
	// shortest is how many bytes the shortest pass sent, and shortestIn the pass in which that was measured.
	shortest, shortestIn uint64

	// stall is the state of the stall detection, or nil.
	stall *stall
	// downtime is how long the guest may be paused now, and raisedIn the pass in which it was last raised.
	downtime time.Duration
	raisedIn uint64
	// raise is the last raise of the downtime that was decided.
	raise raise
}

// raise is a raise of the downtime. It has no effect before libvirt has accepted it.
type raise struct {
	// to is how long the guest may then be paused.
	to time.Duration
	// in is the pass in which it was decided.
	in uint64
	// deadline is when the transfer must have ended after it, with the stall detection.
	deadline time.Time
}

const (
	// firstDowntime is the first limit of the downtime. With QEMU's default of 300 ms (downtime-limit in
	// qapi/migration.json) QEMU pauses a small guest in its first pass over memory, and sends most of it while the guest
	// is paused.
	firstDowntime = 100 * time.Millisecond
	// downtimeFactor multiplies the limit each time that it is raised.
	downtimeFactor = 3
	// passesUntilRaise is the number of passes without a shorter one after which the downtime is raised.
	passesUntilRaise = 2
	// passesUntilDisruption is the number after which the guest is disrupted, if the downtime cannot be raised.
	passesUntilDisruption = 5
	// shorterBy is the part of a pass (1/16) by which a later one must be shorter to count: sizes vary.
	shorterBy = 16
	// fullThrottle is the most that auto-converge throttles. QEMU's default of max-cpu-throttle.
	fullThrottle = 99
)

// New makes a Monitor for a transfer that starts now.
func New(r Rules, now time.Time) *Monitor {
	m := &Monitor{rules: r, started: now, moved: now, improved: now, mode: v1.MigrationPreCopy}
	first := firstDowntime
	if r.stall != nil {
		m.stall, first = &stall{stallOptions: *r.stall}, stallDowntime
	}
	if r.downtime > 0 {
		m.downtime = min(r.downtime, first)
	}
	return m
}

// Mode returns how the guest is transferred.
func (m *Monitor) Mode() v1.MigrationMode { return m.mode }

// SetMode sets how the guest is transferred, after a step that changed it.
func (m *Monitor) SetMode(mode v1.MigrationMode) { m.mode = mode }

// SetPostCopyRequested records that a post-copy is about to be requested from libvirt. Without that, a reported
// post-copy is ignored.
func (m *Monitor) SetPostCopyRequested() { m.postCopyRequested = true }

// Downtime returns how long the guest may be paused now; 0 leaves it to QEMU.
func (m *Monitor) Downtime() time.Duration { return m.downtime }

// RaisedDowntime returns how long the guest is to be allowed to be paused, after Decide has returned RaiseDowntime.
func (m *Monitor) RaisedDowntime() time.Duration { return m.raise.to }

// SetDowntimeRaised records that libvirt has accepted RaisedDowntime.
func (m *Monitor) SetDowntimeRaised() {
	m.downtime, m.raisedIn = m.raise.to, m.raise.in
	if m.stall != nil {
		m.stall.deadline = m.raise.deadline
	}
}

// observe records the progress.
func (m *Monitor) observe(now time.Time, p *hypervisor.TransferProgress) {
	if processed := p.Memory.Processed + p.Disk.Processed; processed != m.processed {
		m.moved, m.processed = now, processed
	}
	if p.Iteration != m.pass {
		m.endPass(now, p)
	}
	// 0 bytes mean that the transfer has not started, or that no progress is known. Within a pass, what is left always
	// falls. That is an improvement only if the passes become shorter, or if there is no further pass.
	if left := remaining(p); left > 0 && (left < m.left || m.left == 0) {
		m.left = left
		if m.mode != v1.MigrationPreCopy || passes(m.shortestIn, p) < passesUntilRaise {
			m.improved = now
		}
	}
	// A hostile launcher that reports a post-copy without a request would make its migration one that is never aborted.
	if p.PostCopy && m.postCopyRequested {
		m.mode = v1.MigrationPostCopy
	}
}

// endPass measures the passes that have ended by the bytes that they sent. What is left at some time does not give the
// size of a pass.
func (m *Monitor) endPass(now time.Time, p *hypervisor.TransferProgress) {
	switch sent := p.Memory.Processed; {
	case m.pass == 0 || p.Iteration < m.pass:
		// A hostile launcher may count backwards.
		m.shortest, m.shortestIn = 0, p.Iteration
	case sent >= m.passStartSent:
		if size := max((sent-m.passStartSent)/(p.Iteration-m.pass), 1); m.shortest == 0 ||
			size < m.shortest-m.shortest/shorterBy {
			m.shortest, m.shortestIn, m.improved = size, p.Iteration, now
		}
	}
	m.pass, m.passStartSent, m.left = p.Iteration, p.Memory.Processed, 0
}

func remaining(p *hypervisor.TransferProgress) uint64 { return p.Memory.Remaining + p.Disk.Remaining }

// Decide records the progress, and returns what to do now and why.
func (m *Monitor) Decide(now time.Time, p *hypervisor.TransferProgress) (Step, string) {
	m.observe(now, p)
	if m.mode == v1.MigrationPostCopy {
		// The target's guest runs: an abort would lose it.
		return Continue, ""
	}
	if m.stall != nil {
		return m.decideWithStallDetection(now, p)
	}
	limit := m.limit(p)
	late := limit > 0 && now.Sub(m.started) > limit
	stuck := m.rules.stuck > 0 && now.Sub(m.improved) > m.rules.stuck
	// If nothing is transferred at all, disrupting the guest does not help.
	dead := m.rules.stuck > 0 && now.Sub(m.moved) > m.rules.stuck
	hopeless := m.hopeless(p)
	switch {
	case (late || stuck || hopeless) && !dead && m.mode == v1.MigrationPreCopy && m.rules.disruption:
		why := Rates(p)
		if late {
			why = fmt.Sprintf("not completed after %s, %s", limit, why)
		} else {
			why = fmt.Sprintf("%s, %s", m.standstill(now, p), why)
		}
		return m.disrupt(why)
	case stuck:
		return Abort, fmt.Sprintf("Live migration stuck for %d seconds and has been aborted",
			int64(now.Sub(m.improved).Seconds()))
	case late:
		return Abort, fmt.Sprintf("Live migration is not completed after %d seconds and has been aborted",
			int64(limit.Seconds()))
	case m.mode == v1.MigrationPreCopy && m.downtime < m.rules.downtime && remaining(p) > 0 &&
		passes(max(m.shortestIn, m.raisedIn), p) >= passesUntilRaise:
		m.raise = raise{to: min(downtimeFactor*m.downtime, m.rules.downtime), in: p.Iteration}
		return RaiseDowntime, fmt.Sprintf("the guest may be paused for %d ms: %s, %s", m.raise.to.Milliseconds(),
			m.standstill(now, p), Rates(p))
	default:
		return Continue, ""
	}
}

// EventAction returns the action of the event about a step. It differs each time that the downtime is raised: events
// with the same reason and action would be merged.
func (m *Monitor) EventAction(s Step) string {
	switch s {
	case RaiseDowntime:
		return fmt.Sprintf("AllowDowntimeOf%dMs", m.downtime.Milliseconds())
	case PostCopy:
		return "PostCopy"
	default:
		return "StopAndCopy"
	}
}

// hopeless reports whether more passes over memory will not help: they do not become shorter, and neither the downtime
// nor the throttling can be raised.
func (m *Monitor) hopeless(p *hypervisor.TransferProgress) bool {
	return m.downtime >= m.rules.downtime && (!m.rules.autoConverge || p.Throttle >= fullThrottle) &&
		p.DirtyBytesPerSecond > p.Memory.BytesPerSecond && passes(max(m.shortestIn, m.raisedIn), p) >= passesUntilDisruption
}

// standstill describes the lack of progress. A transfer of disks alone has no passes.
func (m *Monitor) standstill(now time.Time, p *hypervisor.TransferProgress) string {
	what := fmt.Sprintf("what is left has not become less than %.1f MiB", mib(m.left))
	if m.shortest > 0 {
		what = fmt.Sprintf("no pass over memory was shorter than %.1f MiB", mib(m.shortest))
	}
	since := now.Sub(m.improved).Round(time.Second)
	if n := passes(m.shortestIn, p); n > 0 {
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
	return fmt.Sprintf("the guest changes %d MiB/s and %d MiB/s are transferred", p.DirtyBytesPerSecond>>20,
		p.Memory.BytesPerSecond>>20)
}

// limit is how long the transfer may take: twice as long with a paused guest. 0 is forever.
func (m *Monitor) limit(p *hypervisor.TransferProgress) time.Duration {
	limit := m.limitBySize(p)
	if m.mode == v1.MigrationPaused {
		limit *= 2
	}
	return limit
}

// limitBySize is how long the transfer may take by its size. 0 is forever.
func (m *Monitor) limitBySize(p *hypervisor.TransferProgress) time.Duration {
	maxTotal := uint64(1 << 50)
	if m.rules.maxTotal > 0 {
		maxTotal = min(m.rules.maxTotal, maxTotal)
	}
	size := min(p.Memory.Total, maxTotal) + min(p.Disk.Total, maxTotal)
	return policy.Limit(min(size, maxTotal), m.rules.perGiB)
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
		return "abort"
	case Continue:
		return "continue"
	default:
		return "unknown"
	}
}

// defaultProgressTimeout is the default of progressTimeout, in seconds. KubeVirt's (pkg/virt-config, defaults of
// migrations).
const defaultProgressTimeout = 150

// MaxDowntime is the most that QEMU accepts (MAX_MIGRATE_DOWNTIME in QEMU's migration/options.c): with it QEMU pauses
// the guest and switches over at once, however long that takes.
const MaxDowntime = 2000 * time.Second

// Rules are the limits of a transfer, from a migration's configuration.
type Rules struct {
	// perGiB is how long each GiB of memory and disks may take, and stuck how long the transfer may make no progress. 0 is
	// forever.
	perGiB, stuck time.Duration
	// maxTotal is the most bytes that there can be to transfer, by the VMI; 0 is any number. The launcher reports the
	// actual number, and the more it reports, the longer the migration may take.
	maxTotal uint64
	// downtime is the longest that the guest may be paused as long as it is not disrupted; 0 leaves it to QEMU.
	downtime time.Duration
	// disruption allows to disrupt the guest, and postCopy to do that by a post-copy.
	disruption, postCopy bool
	// autoConverge has QEMU throttle the guest.
	autoConverge bool
	// stall configures the stall detection, with the feature gate MigrationStallDetection; nil without.
	stall *stallOptions
}

// NewRules returns the rules of a migration. maxTotal is the most bytes that there can be to transfer; 0 is any number.
// detectStalls is the feature gate MigrationStallDetection.
func NewRules(c *v1.VMIMConfigurationOptions, maxTotal uint64, detectStalls bool) Rules {
	r := rulesOf(c)
	r.maxTotal = maxTotal
	if detectStalls {
		r.stall = stallOptionsOf(c)
	}
	return r
}

func rulesOf(c *v1.VMIMConfigurationOptions) Rules {
	r := Rules{perGiB: policy.PerGiB(c), stuck: defaultProgressTimeout * time.Second}
	if c == nil {
		return r
	}
	if c.ProgressTimeout != nil {
		r.stuck = seconds(*c.ProgressTimeout)
	}
	if c.MaxDowntimeMs != nil {
		r.downtime = time.Duration(min(*c.MaxDowntimeMs, uint64(MaxDowntime.Milliseconds()))) * time.Millisecond
	}
	r.autoConverge = ptr.Deref(c.AllowAutoConverge, false)
	r.postCopy = ptr.Deref(c.AllowPostCopy, false)
	r.disruption = r.postCopy
	if c.AllowWorkloadDisruption != nil {
		r.disruption = *c.AllowWorkloadDisruption
	}
	return r
}

// WithoutPostCopy returns the rules for a target that does not support post-copy. Allowing post-copy does not allow to
// pause the guest.
func (r Rules) WithoutPostCopy() Rules {
	r.disruption = r.disruption && !r.postCopy
	r.postCopy = false
	return r
}

// seconds converts a number that a user wrote. More than a year counts as a year: it does not overflow.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), 365*24*3600)) * time.Second
}
