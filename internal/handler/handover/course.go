// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"fmt"
	"time"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

// Defaults of what a migration's configuration leaves open. KubeVirt's (pkg/virt-config, defaults of migrations).
const (
	defaultCompletionTimeoutPerGiB = 150
	defaultProgressTimeout         = 150
)

// maxDowntime is the most that QEMU can be allowed (MAX_MIGRATE_DOWNTIME in QEMU's migration/options.c): it switches over with
// what is left then, however long that takes.
const maxDowntime = 2000 * time.Second

// step is what helps a copy to come to an end.
type step uint8

const (
	// goOn: nothing.
	goOn step = iota
	// postCopy: the target's guest runs and fetches what it lacks.
	postCopy
	// stopAndCopy: the guest stands still until all is copied.
	stopAndCopy
	// giveUp: it stays where it is.
	giveUp
)

// rules are what a migration's configuration says about its end.
type rules struct {
	// perGiB is how long each GiB of memory and disks may take, and stuck how long nothing may be copied. 0 is forever.
	perGiB, stuck time.Duration
	// disruption allows to disturb the guest, and postCopy to do that by a post-copy.
	disruption, postCopy bool
}

func rulesOf(c *v1.VMIMConfigurationOptions) rules {
	r := rules{perGiB: defaultCompletionTimeoutPerGiB * time.Second, stuck: defaultProgressTimeout * time.Second}
	if c == nil {
		return r
	}
	if c.CompletionTimeoutPerGiB != nil {
		r.perGiB = seconds(*c.CompletionTimeoutPerGiB)
	}
	if c.ProgressTimeout != nil {
		r.stuck = seconds(*c.ProgressTimeout)
	}
	r.postCopy = isTrue(c.AllowPostCopy)
	r.disruption = r.postCopy
	if c.AllowWorkloadDisruption != nil {
		r.disruption = *c.AllowWorkloadDisruption
	}
	return r
}

// seconds is a duration that a user wrote. Times beyond a year are as good as forever, and do not overflow.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), 365*24*3600)) * time.Second
}

func isTrue(b *bool) bool { return b != nil && *b }

// course judges whether a copy will come to an end. It is a value in memory: an agent that is restarted begins no copy again.
type course struct {
	rules rules
	began time.Time
	mode  v1.MigrationMode

	// moved is when the copy moved last, and where it was then.
	moved                time.Time
	processed, remaining uint64
}

func newCourse(r rules, now time.Time) *course {
	return &course{rules: r, began: now, moved: now, mode: v1.MigrationPreCopy}
}

// judge says what is to be done now, and why.
func (c *course) judge(now time.Time, p *hypervisor.CopyProgress) (step, string) {
	processed, remaining := p.Memory.Processed+p.Disk.Processed, p.Memory.Remaining+p.Disk.Remaining
	if processed != c.processed || remaining != c.remaining {
		c.moved, c.processed, c.remaining = now, processed, remaining
	}
	if p.PostCopy {
		c.mode = v1.MigrationPostCopy
	}
	limit := c.limit(p)
	late := limit > 0 && now.Sub(c.began) > limit
	still := now.Sub(c.moved)
	switch {
	case c.mode == v1.MigrationPostCopy:
		// The target's guest runs. To end this now would lose it.
		return goOn, ""
	case late && c.mode == v1.MigrationPreCopy && c.rules.disruption:
		why := fmt.Sprintf("not completed after %s, the guest changes %d MiB/s and %d MiB/s are copied", limit, p.DirtyBytesPerSecond>>20, p.Memory.BytesPerSecond>>20)
		if c.rules.postCopy {
			return postCopy, why
		}
		return stopAndCopy, why
	case c.rules.stuck > 0 && still > c.rules.stuck:
		// It is not the guest that is too quick: nothing arrives.
		return giveUp, fmt.Sprintf("Live migration stuck for %d seconds and has been aborted", int64(still.Seconds()))
	case late:
		return giveUp, fmt.Sprintf("Live migration is not completed after %d seconds and has been aborted", int64(limit.Seconds()))
	default:
		return goOn, ""
	}
}

// limit is how long the whole may take. A guest that stands still gets as long again.
func (c *course) limit(p *hypervisor.CopyProgress) time.Duration {
	const gib = 1 << 30
	size := (p.Memory.Total + p.Disk.Total + gib - 1) / gib
	limit := c.rules.perGiB * time.Duration(min(max(size, 1), 1<<20))
	if c.mode == v1.MigrationPaused {
		limit *= 2
	}
	return limit
}

// String is the step in words.
func (s step) String() string {
	switch s {
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
