// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package pace

import (
	"slices"
	"testing"
	"time"
)

const (
	burst       = 5
	first, most = 10 * time.Second, 5 * time.Minute
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// taken tries to take a token in each step, and returns after which times there was one.
func taken(b *Bucket, from time.Time, total, step time.Duration) []time.Duration {
	var at []time.Duration
	for passed := time.Duration(0); passed < total; passed += step {
		if b.Wait(from.Add(passed)) == 0 {
			b.Take(from.Add(passed))
			at = append(at, passed)
		}
	}
	return at
}

func TestDoublingStopsAtItsLimit(t *testing.T) {
	pause := Doubling(first, time.Minute)
	var got []time.Duration
	for range 5 {
		got = append(got, pause.Step())
	}
	if want := []time.Duration{first, 2 * first, 4 * first, time.Minute, time.Minute}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWhoNeverStopsGetsTokensEverMoreRarely(t *testing.T) {
	b := NewBucket(burst, Doubling(first, most))
	at := taken(b, start, 20*time.Minute, time.Second)
	if len(at) > burst+8 {
		t.Fatalf("%d tokens in 20 minutes: %v", len(at), at)
	}
	for i := range burst {
		if at[i] != time.Duration(i)*time.Second {
			t.Errorf("the first ones are not given at once: %v", at)
		}
	}
	for i := burst + 1; i < len(at); i++ {
		before, pause := at[i-1]-at[i-2], at[i]-at[i-1]
		if i > burst+1 && pause < before-2*time.Second || pause > most+2*time.Second {
			t.Errorf("pauses of %s and %s: %v", before, pause, at)
		}
	}
	// It is forgiven.
	later := start.Add(2 * time.Hour)
	if at := taken(b, later, burst*time.Second, time.Second); len(at) != burst {
		t.Errorf("after a quiet hour: %v", at)
	}
	if b.pause != first {
		t.Errorf("the pause is still %s", b.pause)
	}
}

func TestWhoIsSlowNeverWaits(t *testing.T) {
	b := NewBucket(burst, Doubling(first, most))
	if at := taken(b, start, time.Hour, 15*time.Second); len(at) != 240 {
		t.Errorf("%d of 240 tokens were given at once", len(at))
	}
}

// Who comes when they were told to finds a token, whatever the pause.
func TestThereIsATokenWhenItsTimeHasCome(t *testing.T) {
	b, now := NewBucket(burst, Doubling(first, most)), start
	for n := range 50 {
		if wait := b.Wait(now); wait > 0 {
			now = now.Add(wait)
			if again := b.Wait(now); again > 0 {
				t.Fatalf("token %d was waited for for %s and comes after another %s", n, wait, again)
			}
		}
		b.Take(now)
	}
}
