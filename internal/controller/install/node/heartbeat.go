// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package node contains the Node reconciler. Heartbeats decides whether an agent is alive, Labels computes a Node's
// labels and Apply sets them. Labels and Apply are pure functions; Heartbeats keeps state.
package node

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Timeout is how long after its last renewal an agent counts as alive if its Lease has no duration, or if it released
// the Lease, as it does when it is replaced. KubeVirt's value.
const Timeout = 5 * time.Minute

// HeartbeatInterval is the shortest time between two updates of a Node's heartbeat annotation. KubeVirt's value.
const HeartbeatInterval = time.Minute

// Heartbeats tracks which agents are alive. It compares an agent's renewal times with each other, and not with the
// manager's clock: a node is not unresponsive because its clock is wrong.
type Heartbeats struct {
	mu   sync.Mutex
	seen map[string]beat
}

// beat is the last renewal of a Lease, and when it was first observed by this process.
type beat struct {
	renewed time.Time
	at      time.Time
}

// Pulse is the state of an agent.
type Pulse struct {
	// Alive reports whether the agent renews its Lease, or released it less than Timeout ago.
	Alive bool
	// Expires is when the agent counts as not alive unless it renews its Lease.
	Expires time.Time
	// Last is when a renewal of the Lease was last observed.
	Last time.Time
	// Released reports whether the agent released its Lease, as it does when it stops for an update.
	Released bool
}

// Observe returns the state of an agent from its Lease. An agent that stops releases its Lease. It counts as alive
// until Timeout has passed, because its successor usually starts at once, and a Node whose labels changed meanwhile
// could lose its guests (ADR 18). The node gets no new guests meanwhile, because without an agent it has no devices.
//
// The annotations of the Node contain what the previous leader has observed. Until the first renewal that this process
// observes, an agent that was alive is so from now on, and one that was not stays so.
func (h *Heartbeats) Observe(
	node string, lease *coordinationv1.Lease, annotations map[string]string, now time.Time,
) Pulse {
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
		last = beat{renewed: renewed, at: observedBefore(lease, annotations, now)}
	case !last.renewed.Equal(renewed):
		last = beat{renewed: renewed, at: now}
	}
	if h.seen == nil {
		h.seen = map[string]beat{}
	}
	h.seen[node] = last

	pulse := Pulse{Last: last.at, Expires: last.at.Add(timeout(lease)), Released: released(lease)}
	pulse.Alive = now.Before(pulse.Expires)
	return pulse
}

func released(lease *coordinationv1.Lease) bool {
	return lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity == ""
}

// timeout returns the Lease's duration, which a node sets, or Timeout if that is shorter.
func timeout(lease *coordinationv1.Lease) time.Duration {
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 && !released(lease) {
		return min(time.Duration(*seconds)*time.Second, Timeout)
	}
	return Timeout
}

// observedBefore returns when the last renewal of a Lease counts as observed, according to what the annotations of the
// Node say about its agent: so long ago that the agent is silent if it was, the recorded time if it has released the
// Lease, and otherwise now.
func observedBefore(lease *coordinationv1.Lease, annotations map[string]string, now time.Time) time.Time {
	if annotations[UnresponsiveAnnotation] != "" {
		return now.Add(-timeout(lease))
	}
	last, err := time.Parse(time.RFC3339, annotations[HeartbeatAnnotation])
	// While an agent renews its Lease, the annotation is written so rarely that it does not show whether the agent is
	// alive.
	if err == nil && released(lease) && last.Before(now) {
		return last
	}
	return now
}
