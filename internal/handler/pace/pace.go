// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package pace limits how often the agent does what guests and launchers can make it do.
package pace

import (
	"math"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Doubling is a pause that doubles with each Step, from the first one up to a limit.
func Doubling(first, most time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Factor: 2, Steps: math.MaxInt, Cap: most}
}

// Bucket is a token bucket that gives a number of tokens at once, and then one in each pause. The pause becomes longer with each token
// that had to be waited for, and is the first one again when the bucket was full. It serves one goroutine at a time.
type Bucket struct {
	burst       int
	first, next wait.Backoff
	pause       time.Duration
	limiter     *rate.Limiter
	// waited says that the next token had to be waited for.
	waited bool
}

// NewBucket makes a full bucket.
func NewBucket(burst int, pauses wait.Backoff) *Bucket {
	b := &Bucket{burst: burst, first: pauses, next: pauses, limiter: rate.NewLimiter(0, burst)}
	b.slowDown(time.Time{})
	return b
}

// Wait returns how long it takes until there is a token, or 0 if there is one.
func (b *Bucket) Wait(now time.Time) time.Duration {
	missing := 1 - b.limiter.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	b.waited = true
	// Rounded up, so that there is a token when the time has come.
	return time.Duration(missing*float64(b.pause)) + time.Millisecond
}

// Take takes a token.
func (b *Bucket) Take(now time.Time) {
	if b.limiter.TokensAt(now) >= float64(b.burst) {
		b.next = b.first
		b.slowDown(now)
	} else if b.waited {
		b.slowDown(now)
	}
	b.waited = false
	b.limiter.ReserveN(now, 1)
}

// slowDown goes on to the next pause.
func (b *Bucket) slowDown(now time.Time) {
	b.pause = b.next.Step()
	b.limiter.SetLimitAt(now, rate.Every(b.pause))
}
