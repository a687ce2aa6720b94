// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package node has the parts of the Node reconciler: whether an agent lives (Heartbeats), what a Node is labeled
// with (Labels), and what of that is written when (Apply). All of it is pure but for Heartbeats, which remembers.
package node

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Timeout is how long an agent may be silent that said goodbye, or whose Lease does not say how long. KubeVirt's value.
const Timeout = 5 * time.Minute

// HeartbeatInterval is how often a living agent's time is written to its Node at most. KubeVirt's value.
const HeartbeatInterval = time.Minute

// Heartbeats tells which agents live. It compares an agent's times with each other and never with the manager's
// clock, except the first time that it sees one: a node whose clock is wrong is not unresponsive.
type Heartbeats struct {
	mu   sync.Mutex
	seen map[string]beat
}

// beat is the last renewal of a Lease and when it was first seen here.
type beat struct {
	renewed time.Time
	at      time.Time
}

// Pulse is the state of an agent.
type Pulse struct {
	// Alive says that the agent renews its Lease.
	Alive bool
	// Expires is when a living agent counts as dead unless it renews its Lease.
	Expires time.Time
	// Last is when the agent was last heard of.
	Last time.Time
	// Left says that the agent said goodbye, as at an update: nothing is wrong with it.
	Left bool
}

// Observe looks at an agent's Lease. A nil Lease, or one without a holder, which is how an agent says goodbye, is dead.
func (h *Heartbeats) Observe(node string, lease *coordinationv1.Lease, now time.Time) Pulse {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lease == nil {
		delete(h.seen, node)
		return Pulse{}
	}
	if lease.Spec.RenewTime == nil {
		return Pulse{}
	}
	renewed := lease.Spec.RenewTime.Time
	last, known := h.seen[node]
	switch {
	case !known:
		// Before the first check there is only what the agent itself says. A time in the future counts as now.
		last = beat{renewed: renewed, at: earlier(renewed, now)}
	case !last.renewed.Equal(renewed):
		last = beat{renewed: renewed, at: now}
	}
	if h.seen == nil {
		h.seen = map[string]beat{}
	}
	h.seen[node] = last

	pulse := Pulse{Last: last.at, Expires: last.at.Add(timeout(lease))}
	pulse.Left = lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == ""
	pulse.Alive = !pulse.Left && now.Before(pulse.Expires)
	return pulse
}

// timeout is the Lease's own duration. It comes from a node and is capped.
func timeout(lease *coordinationv1.Lease) time.Duration {
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		return min(time.Duration(*seconds)*time.Second, Timeout)
	}
	return Timeout
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
