// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/vireo-project/vireo/internal/component/metrics"
)

// Waiting is what a guest of this node waits for.
type Waiting struct {
	// VMI is its VMI.
	VMI types.NamespacedName
	// Thaw is when its file systems, which we have frozen, must be thawed at the latest. Zero means never, or that they are not frozen.
	Thaw time.Time
	// Owner reports whether a migration has paused it, and neither node may let it run yet.
	Owner bool
}

var (
	freezeOverdue = metrics.DescribeOwn("vmi_freeze_overdue_seconds",
		"For each guest whose file systems are frozen with a time limit: how long that has passed, or 0.", "node", "namespace", "name")
	ownerUndecided = metrics.DescribeOwn("vmi_owner_undecided",
		"1 for each guest on either side of a migration that is paused until it is certain which of the two nodes may let it run.",
		"node", "namespace", "name")
)

// WaitingCollector exports what guests wait for.
type WaitingCollector struct {
	// Node is the name of the node.
	Node string
	// Guests returns the guests that wait for something.
	Guests func() []Waiting
	// Clock is the node's clock, by which guests are thawed.
	Clock clock.PassiveClock
}

// Describe implements prometheus.Collector.
func (c *WaitingCollector) Describe(to chan<- *prometheus.Desc) {
	to <- freezeOverdue
	to <- ownerUndecided
}

// Collect implements prometheus.Collector. A VMI has at most one series of each metric, even if two of its Pods are on the node.
func (c *WaitingCollector) Collect(to chan<- prometheus.Metric) {
	now, thaws, undecided := c.Clock.Now(), map[types.NamespacedName]time.Time{}, map[types.NamespacedName]bool{}
	for _, guest := range c.Guests() {
		if known, ok := thaws[guest.VMI]; !guest.Thaw.IsZero() && (!ok || guest.Thaw.Before(known)) {
			thaws[guest.VMI] = guest.Thaw
		}
		undecided[guest.VMI] = undecided[guest.VMI] || guest.Owner
	}
	for vmi, thaw := range thaws {
		to <- metrics.Gauge(freezeOverdue, max(now.Sub(thaw).Seconds(), 0), c.Node, vmi.Namespace, vmi.Name)
	}
	for vmi, is := range undecided {
		if is {
			to <- metrics.Gauge(ownerUndecided, 1, c.Node, vmi.Namespace, vmi.Name)
		}
	}
}
