// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/vireo-project/vireo/internal/agent/ratelimit"
)

const (
	// firstBackoff is about the time between libvirtd's bind and listen.
	firstBackoff = 10 * time.Millisecond
	maxBackoff   = 30 * time.Second
	// steady is how long a connection must have lasted for the backoff to be reset.
	steady = time.Minute
	// firstQuarantine and maxQuarantine are the delays after a call without a response. Each attempt uses a thread until it times
	// out, so the delays grow until even attempts with the longest timeout, of three minutes, take less time than the delays.
	firstQuarantine = 5 * time.Second
	maxQuarantine   = 5 * time.Minute
	// recently is how long a launcher's response, or its absence, counts when the agent decides whether the node is slow: guest
	// agents are polled at least that often.
	recently = maxGuestPoll
)

// backoff decides when the agent connects to a launcher again. A launcher that did not respond to a call in time is in
// quarantine: the delays between attempts double, until a connection lasts.
type backoff struct {
	// failures are the delays after failed attempts and short connections, silences those after a call without a response.
	failures, silences wait.Backoff
}

func newBackoff() backoff {
	return backoff{failures: ratelimit.ExponentialBackoff(firstBackoff, maxBackoff), silences: ratelimit.ExponentialBackoff(firstQuarantine, maxQuarantine)}
}

// failed returns the delay after a failed attempt to connect.
func (b *backoff) failed(err error, slowNode bool) time.Duration {
	if errors.Is(err, errSilent) {
		return b.quarantine(slowNode)
	}
	return b.failures.Step()
}

// lost returns the delay after a connection that ended. One that lasted is replaced at once: libvirtd was restarted, or the node
// was suspended. A connection that was closed early is not, because repeated connections cost the agent more than its launcher.
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

// quarantine returns the delay after a call without a response. It does not grow if the node is slow, which is not the launcher's
// fault.
func (b *backoff) quarantine(slowNode bool) time.Duration {
	if slowNode {
		return b.silences.Duration
	}
	return b.silences.Step()
}
