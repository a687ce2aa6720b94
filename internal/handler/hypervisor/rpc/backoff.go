// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"time"
)

const (
	// firstBackoff is about the time between libvirtd's bind and listen.
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// steady is how long a connection must have lived for the next failure to count as the first.
	steady = time.Minute
	// firstQuarantine and maxQuarantine are the pauses after a call that got no answer. Each attempt costs a thread until its time is
	// over, so the pauses grow until the attempts that take longest, of three minutes, are the smaller part.
	firstQuarantine = 5 * time.Second
	maxQuarantine   = 5 * time.Minute
)

// backoff decides how long a launcher is left alone before the agent connects to it again. A launcher in quarantine is one that did not
// answer a call in time: it is connected to again after pauses that double, and is out of quarantine once a connection has lasted.
type backoff struct {
	// failures are the attempts and short connections in a row, silences those that ended because of a call without an answer.
	failures, silences int
}

// failed is the pause after an attempt to connect that failed.
func (b *backoff) failed(err error) time.Duration {
	if errors.Is(err, errSilent) {
		return b.quarantine()
	}
	b.failures++
	return doubled(firstBackoff, b.failures, maxBackoff)
}

// lost is the pause after a connection that ended. One that was of use is replaced at once: libvirtd was replaced, or the node slept.
// A connection is of use by lasting: one that is made and closed again costs the agent more than its launcher.
func (b *backoff) lost(err error, lived time.Duration) time.Duration {
	if lived > max(steady, 2*doubled(firstQuarantine, b.silences, maxQuarantine)) {
		*b = backoff{}
	}
	if errors.Is(err, errSilent) {
		return b.quarantine()
	}
	if lived > steady {
		b.failures = 0
		return 0
	}
	b.failures++
	return doubled(firstBackoff, b.failures, maxBackoff)
}

func (b *backoff) quarantine() time.Duration {
	b.silences++
	return doubled(firstQuarantine, b.silences, maxQuarantine)
}

// doubled is the pause after so many failures: first, twice that, and so on. Without a failure it is 0.
func doubled(first time.Duration, failures int, limit time.Duration) time.Duration {
	if failures == 0 {
		return 0
	}
	pause := first
	for range failures - 1 {
		if pause = 2 * pause; pause >= limit {
			return limit
		}
	}
	return pause
}
