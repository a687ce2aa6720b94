// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"fmt"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
	"github.com/vireo-project/vireo/internal/migrationpolicy"
)

// defaultProgressTimeout is what a configuration that says nothing means. KubeVirt's (pkg/virt-config, defaults of migrations).
const defaultProgressTimeout = 150

// maxDowntime is the most that QEMU can be allowed (MAX_MIGRATE_DOWNTIME in QEMU's migration/options.c): it switches over with
// what is left then, however long that takes.
const maxDowntime = 2000 * time.Second

// step is what helps a copy to come to an end.
type step uint8

const (
	// goOn: nothing.
	goOn step = iota
	// allowMore: it may stand still for longer at the end.
	allowMore
	// postCopy: the target's guest runs and fetches what it lacks.
	postCopy
	// stopAndCopy: the guest stands still until all is copied.
	stopAndCopy
	// giveUp: it stays where it is.
	giveUp
)

// rules are what a migration's configuration says about its end.
type rules struct {
	// perGiB is how long each GiB of memory and disks may take, and stuck how long what is left may not become less than it ever was.
	// 0 is forever.
	perGiB, stuck time.Duration
	// most is how many bytes there can be to copy at most, by the VMI; 0 is any number. The launcher says how many there are, and the
	// more it says, the longer the migration may take.
	most uint64
	// downtime is the longest that the guest may stand still as long as it is not to be disturbed; 0 leaves it to QEMU.
	downtime time.Duration
	// disruption allows to disturb the guest, and postCopy to do that by a post-copy.
	disruption, postCopy bool
	// autoConverge has QEMU slow the guest down.
	autoConverge bool
	// stall is how a copy that gets nowhere is found and ended, with the feature gate MigrationStallDetection, or nil.
	stall *stallOptions
}

func rulesOf(c *v1.VMIMConfigurationOptions) rules {
	r := rules{perGiB: migrationpolicy.PerGiB(c), stuck: defaultProgressTimeout * time.Second}
	if c == nil {
		return r
	}
	if c.ProgressTimeout != nil {
		r.stuck = seconds(*c.ProgressTimeout)
	}
	if c.MaxDowntimeMs != nil {
		r.downtime = time.Duration(min(*c.MaxDowntimeMs, uint64(maxDowntime.Milliseconds()))) * time.Millisecond
	}
	r.autoConverge = isTrue(c.AllowAutoConverge)
	r.postCopy = isTrue(c.AllowPostCopy)
	r.disruption = r.postCopy
	if c.AllowWorkloadDisruption != nil {
		r.disruption = *c.AllowWorkloadDisruption
	}
	return r
}

// withoutPostCopy are the rules where no post-copy is possible. That it was allowed does not mean that the guest may stand still.
func (r rules) withoutPostCopy() rules {
	r.disruption = r.disruption && !r.postCopy
	r.postCopy = false
	return r
}

// seconds is a duration that a user wrote. Times beyond a year are as good as forever, and do not overflow.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), 365*24*3600)) * time.Second
}

func isTrue(b *bool) bool { return b != nil && *b }

// convergence judges whether a copy will come to an end. It is a value in memory: an agent that is restarted begins no copy again.
type convergence struct {
	rules rules
	began time.Time
	mode  v1.MigrationMode
	// asked says that libvirt was asked for a post-copy. The call may fail and libvirt begin it all the same.
	asked bool

	// moved is when something was copied last, and processed how much there was then.
	moved     time.Time
	processed uint64
	// gained is when the copy came nearer to its end last.
	gained time.Time
	// pass is the pass over memory that was seen last. It began with passFrom bytes sent, and left is the least that was left in it.
	pass, passFrom, left uint64
	// shortest is how many bytes the shortest pass sent, and shortestIn is the pass in which that was known.
	shortest, shortestIn uint64

	// stall is what is known with the feature gate, or nil.
	stall *stall
	// downtime is how long the guest may stand still now, and raisedIn the pass in which that was allowed.
	downtime time.Duration
	raisedIn uint64
}

const (
	// firstDowntime is how long a guest may stand still unless that proves to be too short. QEMU's default of 300 ms (downtime-limit in
	// qapi/migration.json) lets it stop a small guest in its first pass over memory, and copy most of it while it stands still.
	firstDowntime = 100 * time.Millisecond
	// moreDowntime is by how much that is raised each time.
	moreDowntime = 3
	// patientPasses is how many passes may not become shorter until something is done about it.
	patientPasses = 2
	// stalledPasses is the same when all else was tried, before the guest is disturbed.
	stalledPasses = 5
	// shorter is the part of a pass by which a shorter one is: no two are the same.
	shorter = 16
	// fullThrottle is where auto-converge ends. QEMU's default of max-cpu-throttle.
	fullThrottle = 99
)

func newConvergence(r rules, now time.Time) *convergence {
	c := &convergence{rules: r, began: now, moved: now, gained: now, mode: v1.MigrationPreCopy}
	first := firstDowntime
	if r.stall != nil {
		c.stall, first = &stall{stallOptions: *r.stall}, stallDowntime
	}
	if r.downtime > 0 {
		c.downtime = min(r.downtime, first)
	}
	return c
}

// see takes in how far the copy is.
func (c *convergence) see(now time.Time, p *hypervisor.CopyProgress) {
	if processed := p.Memory.Processed + p.Disk.Processed; processed != c.processed {
		c.moved, c.processed = now, processed
	}
	if p.Iteration != c.pass {
		c.endPass(now, p)
	}
	// Nothing is left of a copy that has not begun, or of which nothing was heard, as well. What is left falls in each pass: one that
	// is no shorter than those before it brings no end nearer, unless no other follows.
	if left := remaining(p); left > 0 && (left < c.left || c.left == 0) {
		c.left = left
		if c.mode != v1.MigrationPreCopy || passes(c.shortestIn, p) < patientPasses {
			c.gained = now
		}
	}
	// A launcher that says so unasked would make the migration one that nobody may end.
	if p.PostCopy && c.asked {
		c.mode = v1.MigrationPostCopy
	}
}

// endPass measures the passes that have ended by what they have sent: what is left is anything between all of a pass and nothing,
// whenever one looks.
func (c *convergence) endPass(now time.Time, p *hypervisor.CopyProgress) {
	switch sent := p.Memory.Processed; {
	case c.pass == 0 || p.Iteration < c.pass:
		// A launcher may count backwards.
		c.shortest, c.shortestIn = 0, p.Iteration
	case sent >= c.passFrom:
		if size := max((sent-c.passFrom)/(p.Iteration-c.pass), 1); c.shortest == 0 || size < c.shortest-c.shortest/shorter {
			c.shortest, c.shortestIn, c.gained = size, p.Iteration, now
		}
	}
	c.pass, c.passFrom, c.left = p.Iteration, p.Memory.Processed, 0
}

func remaining(p *hypervisor.CopyProgress) uint64 { return p.Memory.Remaining + p.Disk.Remaining }

// judge says what is to be done now, and why.
func (c *convergence) judge(now time.Time, p *hypervisor.CopyProgress) (step, string) {
	c.see(now, p)
	if c.mode == v1.MigrationPostCopy {
		// The target's guest runs. To end this now would lose it.
		return goOn, ""
	}
	if c.stall != nil {
		return c.judgeStall(now, p)
	}
	limit := c.limit(p)
	late := limit > 0 && now.Sub(c.began) > limit
	stuck := c.rules.stuck > 0 && now.Sub(c.gained) > c.rules.stuck
	// A link on which nothing arrives is not helped by what the guest does.
	dead := c.rules.stuck > 0 && now.Sub(c.moved) > c.rules.stuck
	hopeless := c.hopeless(p)
	switch {
	case (late || stuck || hopeless) && !dead && c.mode == v1.MigrationPreCopy && c.rules.disruption:
		why := rates(p)
		if late {
			why = fmt.Sprintf("not completed after %s, %s", limit, why)
		} else {
			why = fmt.Sprintf("%s, %s", c.standstill(now, p), why)
		}
		return c.disturb(why)
	case stuck:
		return giveUp, fmt.Sprintf("Live migration stuck for %d seconds and has been aborted", int64(now.Sub(c.gained).Seconds()))
	case late:
		return giveUp, fmt.Sprintf("Live migration is not completed after %d seconds and has been aborted", int64(limit.Seconds()))
	case c.mode == v1.MigrationPreCopy && c.downtime < c.rules.downtime && remaining(p) > 0 && passes(max(c.shortestIn, c.raisedIn), p) >= patientPasses:
		c.downtime, c.raisedIn = min(moreDowntime*c.downtime, c.rules.downtime), p.Iteration
		return allowMore, fmt.Sprintf("the guest may stand still for %d ms: %s, %s", c.downtime.Milliseconds(), c.standstill(now, p), rates(p))
	default:
		return goOn, ""
	}
}

// action is the step in an event. One that may be taken more than once says what is different now.
func (c *convergence) action(s step) string {
	switch s {
	case allowMore:
		return fmt.Sprintf("AllowDowntimeOf%dMs", c.downtime.Milliseconds())
	case postCopy:
		return "PostCopy"
	default:
		return "StopAndCopy"
	}
}

// hopeless says that more passes over memory will not help: they do not get shorter, the guest may stand still for as long as it
// may at most, and is slowed down as far as it can be.
func (c *convergence) hopeless(p *hypervisor.CopyProgress) bool {
	return c.downtime >= c.rules.downtime && (!c.rules.autoConverge || p.Throttle >= fullThrottle) &&
		p.DirtyBytesPerSecond > p.Memory.BytesPerSecond && passes(max(c.shortestIn, c.raisedIn), p) >= stalledPasses
}

// standstill is how little gets on, in words. A copy of disks alone has no passes.
func (c *convergence) standstill(now time.Time, p *hypervisor.CopyProgress) string {
	what := fmt.Sprintf("what is left has not become less than %.1f MiB", mib(c.left))
	if c.shortest > 0 {
		what = fmt.Sprintf("no pass over memory was shorter than %.1f MiB", mib(c.shortest))
	}
	since := now.Sub(c.gained).Round(time.Second)
	if n := passes(c.shortestIn, p); n > 0 {
		return fmt.Sprintf("%s for %d passes and %s", what, n, since)
	}
	return fmt.Sprintf("%s for %s", what, since)
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// passes are how many there were over memory since one. A launcher may count backwards.
func passes(since uint64, p *hypervisor.CopyProgress) uint64 {
	return max(p.Iteration, since) - since
}

func rates(p *hypervisor.CopyProgress) string {
	return fmt.Sprintf("the guest changes %d MiB/s and %d MiB/s are copied", p.DirtyBytesPerSecond>>20, p.Memory.BytesPerSecond>>20)
}

// limit is how long the whole may take. A guest that stands still gets as long again.
func (c *convergence) limit(p *hypervisor.CopyProgress) time.Duration {
	limit := c.sized(p)
	if c.mode == v1.MigrationPaused {
		limit *= 2
	}
	return limit
}

// sized is how long the whole may take by its size. 0 is forever.
func (c *convergence) sized(p *hypervisor.CopyProgress) time.Duration {
	most := uint64(1 << 50)
	if c.rules.most > 0 {
		most = min(c.rules.most, most)
	}
	size := min(p.Memory.Total, most) + min(p.Disk.Total, most)
	return migrationpolicy.Limit(min(size, most), c.rules.perGiB)
}

// String is the step in words.
func (s step) String() string {
	switch s {
	case allowMore:
		return "allow a longer downtime"
	case postCopy:
		return "post-copy"
	case stopAndCopy:
		return "stop and copy"
	case giveUp:
		return "give up"
	case goOn:
		return "go on"
	default:
		return "unknown"
	}
}
