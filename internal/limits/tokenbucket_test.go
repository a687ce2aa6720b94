// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import (
	"slices"
	"testing"
	"time"
)

const (
	burst            = 5
	initial, longest = 10 * time.Second, 5 * time.Minute
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// taken tries to take a token at each step, and returns the times at which there was one.
func taken(l *TokenBucket, from time.Time, total, step time.Duration) []time.Duration {
	var at []time.Duration
	for elapsed := time.Duration(0); elapsed < total; elapsed += step {
		if l.Delay(from.Add(elapsed)) == 0 {
			l.Take(from.Add(elapsed))
			at = append(at, elapsed)
		}
	}
	return at
}

func TestExponentialBackoffIsCapped(t *testing.T) {
	backoff := ExponentialBackoff(initial, time.Minute)
	var got []time.Duration
	for range 5 {
		got = append(got, backoff.Step())
	}
	if want := []time.Duration{initial, 2 * initial, 4 * initial, time.Minute, time.Minute}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestIntervalGrowsUnderConstantLoad(t *testing.T) {
	l := NewTokenBucket(burst, ExponentialBackoff(initial, longest))
	at := taken(l, began, 20*time.Minute, time.Second)
	if len(at) > burst+8 {
		t.Fatalf("%d tokens in 20 minutes: %v", len(at), at)
	}
	for i := range burst {
		if at[i] != time.Duration(i)*time.Second {
			t.Errorf("the tokens of the burst are delayed: %v", at)
		}
	}
	for i := burst + 1; i < len(at); i++ {
		before, interval := at[i-1]-at[i-2], at[i]-at[i-1]
		if i > burst+1 && interval < before-2*time.Second || interval > longest+2*time.Second {
			t.Errorf("intervals of %s and %s: %v", before, interval, at)
		}
	}
	// The interval is reset when the bucket is full again.
	later := began.Add(2 * time.Hour)
	if at := taken(l, later, burst*time.Second, time.Second); len(at) != burst {
		t.Errorf("after a quiet hour: %v", at)
	}
	if l.interval != initial {
		t.Errorf("the interval is still %s", l.interval)
	}
}

func TestSlowCallerIsNotDelayed(t *testing.T) {
	l := NewTokenBucket(burst, ExponentialBackoff(initial, longest))
	if at := taken(l, began, time.Hour, 15*time.Second); len(at) != 240 {
		t.Errorf("%d of 240 tokens were available at once", len(at))
	}
}

func TestTokenIsAvailableAfterDelay(t *testing.T) {
	l, now := NewTokenBucket(burst, ExponentialBackoff(initial, longest)), began
	for n := range 50 {
		if delay := l.Delay(now); delay > 0 {
			now = now.Add(delay)
			if again := l.Delay(now); again > 0 {
				t.Fatalf("token %d has a delay of %s after the delay of %s", n, again, delay)
			}
		}
		l.Take(now)
	}
}
