// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package convergence

import (
	"encoding/binary"
	"testing"
	"time"
	"unicode"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// maxReason is the largest length of a reason in bytes.
const maxReason = 512

// forever is longer than any migration, and can be added to a time.
const forever = 100 * 365 * 24 * time.Hour

// reports are what a launcher reports, eight bytes each.
type reports []byte

func (r *reports) next() uint64 {
	if len(*r) < 8 {
		*r = nil
		return 0
	}
	n := binary.LittleEndian.Uint64(*r)
	*r = (*r)[8:]
	return n
}

func (r *reports) progress() *hypervisor.TransferProgress {
	flags := r.next()
	return &hypervisor.TransferProgress{
		PostCopy: flags&1 != 0, Throttle: int(int8(flags >> 8)), Iteration: r.next(), DirtyBytesPerSecond: r.next(),
		Memory: hypervisor.TransferAmount{Total: r.next(), Processed: r.next(), Remaining: r.next(),
			BytesPerSecond: r.next()},
		Disk: hypervisor.TransferAmount{Total: r.next(), Processed: r.next(), Remaining: r.next()},
	}
}

// FuzzConvergence checks that with any reports of a launcher a migration with limits ends, the downtime stays within
// its limit, and reasons are bounded printable text. A migration is in post-copy only if that was requested.
func FuzzConvergence(f *testing.F) {
	seed := func(numbers ...uint64) []byte {
		var out []byte
		for _, n := range numbers {
			out = binary.LittleEndian.AppendUint64(out, n)
		}
		return out
	}
	f.Add(int64(150), int64(150), uint64(500), uint64(8*gib), uint8(0), seed(0, 1, 9, 2*gib, gib, gib, 100<<20, 0, 0, 0))
	f.Add(int64(1), int64(0), uint64(0), uint64(0), uint8(3),
		seed(1, 1, 9, 1<<63, 9, 9, 9, 1<<63, 9, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0))
	f.Add(int64(150), int64(0), uint64(900), uint64(8*gib), uint8(4), seed(0, 1, 9, 2*gib, gib, gib, 100<<20, 0, 0, 0))
	f.Add(int64(365*24*3600), int64(0), uint64(900), uint64(1<<50), uint8(1), seed(0, 1, 9, 1<<50, 9, 9, 9, 1<<50, 9, 9))
	f.Fuzz(func(t *testing.T, perGiB, stuck int64, downtime, most uint64, allowed uint8, data []byte) {
		options := v1.VMIMConfigurationOptions{CompletionTimeoutPerGiB: &perGiB, ProgressTimeout: &stuck,
			MaxDowntimeMs: &downtime}
		disruption, postCopies := allowed&1 != 0, allowed&2 != 0
		options.AllowWorkloadDisruption, options.AllowPostCopy = &disruption, &postCopies
		r := rulesOf(&options)
		r.maxTotal = most
		if allowed&4 != 0 {
			r.stall = stallOptionsOf(&options)
		}
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		c := New(r, now)
		reported := reports(data)
		for len(reported) > 0 {
			now = now.Add(time.Second)
			if got := decide(t, c, now, reported.progress()); got == Abort && r.stall == nil &&
				now.Sub(c.started) <= min(orForever(r.perGiB), orForever(r.stuck)) {
				t.Fatalf("it is aborted after %s", now.Sub(c.started))
			}
		}
		if c.mode == v1.MigrationPostCopy || r.perGiB == 0 {
			return
		}
		// A launcher may report growing amounts, and the migration ends all the same.
		gibs := min(max(most, 1)/gib+1, 1<<20)
		if most == 0 {
			gibs = 1 << 20
		}
		for range 2 {
			now = now.Add(2*atMost(r.perGiB, gibs) + time.Second)
			if r.stall != nil {
				now = now.Add(r.stall.switchover)
			}
			got := decide(t, c, now, &hypervisor.TransferProgress{
				Iteration: 1, Memory: hypervisor.TransferAmount{Total: 1 << 63, Processed: 1, Remaining: 1 << 63},
			})
			if got == Abort || c.mode == v1.MigrationPostCopy {
				return
			}
		}
		t.Errorf("it continues in mode %s after %s", c.mode, now.Sub(c.started))
	})
}

// atMost returns a limit per GiB multiplied by a number of GiB, and at most forever.
func atMost(perGiB time.Duration, gibs uint64) time.Duration {
	if perGiB > forever/time.Duration(gibs) {
		return forever
	}
	return perGiB * time.Duration(gibs)
}

// orForever returns a limit, or forever if it is not positive.
func orForever(limit time.Duration) time.Duration {
	if limit <= 0 {
		return forever
	}
	return limit
}

// decide executes the monitor's decision, as the transfer does.
func decide(t *testing.T, c *Monitor, now time.Time, p *hypervisor.TransferProgress) Step {
	t.Helper()
	got, why := c.Decide(now, p)
	if (why == "") != (got == Continue) || len(why) > maxReason {
		t.Fatalf("%s: %d bytes of reason: %.100q", got, len(why), why)
	}
	for _, r := range why {
		if !unicode.IsPrint(r) {
			t.Fatalf("%U in %q", r, why)
		}
	}
	if c.downtime > c.rules.downtime {
		t.Fatalf("the downtime is %s, and %s is allowed", c.downtime, c.rules.downtime)
	}
	switch {
	case got == RaiseDowntime:
		c.SetDowntimeRaised()
	case got == PostCopy && c.rules.postCopy:
		c.postCopyRequested, c.mode = true, v1.MigrationPostCopy
	case got == StopAndCopy && c.rules.disruption:
		c.mode = v1.MigrationPaused
	case got == PostCopy || got == StopAndCopy:
		t.Fatalf("%s is not allowed", got)
	}
	if c.mode == v1.MigrationPostCopy && !c.postCopyRequested {
		t.Fatal("post-copy was not requested")
	}
	return got
}
