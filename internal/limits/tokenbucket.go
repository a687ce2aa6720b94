// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import (
	"math"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
)

// ExponentialBackoff returns a backoff whose delay doubles with each Step, from initial up to limit.
func ExponentialBackoff(initial, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: initial, Factor: 2, Steps: math.MaxInt, Cap: limit}
}

// TokenBucket is a token bucket whose refill interval backs off: each token that the caller had to wait for makes the
// interval longer, and a full bucket resets it. rate.Limiter has a constant rate. It is not safe for concurrent use.
type TokenBucket struct {
	burst int
	// initial is the backoff of the refill interval, next its current state.
	initial, next wait.Backoff
	// interval is the time in which one token is added.
	interval time.Duration
	bucket   *rate.Limiter
	// delayed reports whether the caller has to wait for the next token.
	delayed bool
}

// NewTokenBucket returns a TokenBucket with a full bucket of burst tokens.
func NewTokenBucket(burst int, intervals wait.Backoff) *TokenBucket {
	l := &TokenBucket{burst: burst, initial: intervals, next: intervals, bucket: rate.NewLimiter(0, burst)}
	l.stepInterval(time.Time{})
	return l
}

// Delay returns the time until a token is available, 0 if there is one.
func (l *TokenBucket) Delay(now time.Time) time.Duration {
	missing := 1 - l.bucket.TokensAt(now)
	if missing <= 0 {
		return 0
	}
	l.delayed = true
	// Rounded up, so that there is a token after that time.
	return time.Duration(missing*float64(l.interval)) + time.Millisecond
}

// Take removes a token.
func (l *TokenBucket) Take(now time.Time) {
	if l.bucket.TokensAt(now) >= float64(l.burst) {
		l.next = l.initial
		l.stepInterval(now)
	} else if l.delayed {
		l.stepInterval(now)
	}
	l.delayed = false
	l.bucket.ReserveN(now, 1)
}

// stepInterval sets the interval to the next one of the backoff.
func (l *TokenBucket) stepInterval(now time.Time) {
	l.interval = l.next.Step()
	l.bucket.SetLimitAt(now, rate.Every(l.interval))
}
