// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/vireo-project/vireo/internal/handler/pace"
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
	// recently is how long a launcher's answer, or that there was none, says something about the node: guests' agents are asked at least
	// that often.
	recently = maxGuestPoll
)

// backoff decides how long a launcher is left alone before the agent connects to it again. A launcher in quarantine is one that did not
// answer a call in time: it is connected to again after pauses that double, and is out of quarantine once a connection has lasted.
type backoff struct {
	// failures are the pauses after attempts and short connections in a row, silences those after a call without an answer.
	failures, silences wait.Backoff
}

func newBackoff() backoff {
	return backoff{failures: pace.Doubling(firstBackoff, maxBackoff), silences: pace.Doubling(firstQuarantine, maxQuarantine)}
}

// failed is the pause after an attempt to connect that failed.
func (b *backoff) failed(err error, slowNode bool) time.Duration {
	if errors.Is(err, errSilent) {
		return b.quarantine(slowNode)
	}
	return b.failures.Step()
}

// lost is the pause after a connection that ended. One that was of use is replaced at once: libvirtd was replaced, or the node slept.
// A connection is of use by lasting: one that is made and closed again costs the agent more than its launcher.
func (b *backoff) lost(err error, lived time.Duration, slowNode bool) time.Duration {
	if lived > max(steady, b.silences.Duration) {
		*b = newBackoff()
	}
	if errors.Is(err, errSilent) {
		return b.quarantine(slowNode)
	}
	if lived > steady {
		b.failures = newBackoff().failures
		return 0
	}
	return b.failures.Step()
}

// quarantine is the pause after a call without an answer. A slow node is not the launcher's fault: the next pause is no longer then.
func (b *backoff) quarantine(slowNode bool) time.Duration {
	if slowNode {
		return b.silences.Duration
	}
	return b.silences.Step()
}
