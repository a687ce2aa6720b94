// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestWaiting(t *testing.T) {
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	vmi := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }
	c := &WaitingCollector{Node: "node-1", Clock: clocktesting.NewFakePassiveClock(now), Guests: func() []Waiting {
		return []Waiting{
			{VMI: vmi("frozen"), Thaw: now.Add(time.Minute)},
			{VMI: vmi("late"), Thaw: now.Add(-time.Minute)},
			{VMI: vmi("undecided"), Owner: true},
			// Two Pods of a VMI.
			{VMI: vmi("both"), Thaw: now.Add(-time.Hour)}, {VMI: vmi("both"), Thaw: now, Owner: true},
		}
	}}
	if err := testutil.CollectAndCompare(c, strings.NewReader(`
# HELP vireo_vmi_freeze_overdue_seconds For each guest whose file systems are frozen with a time limit: how long that has passed, or 0.
# TYPE vireo_vmi_freeze_overdue_seconds gauge
vireo_vmi_freeze_overdue_seconds{name="both",namespace="ns",node="node-1"} 3600
vireo_vmi_freeze_overdue_seconds{name="frozen",namespace="ns",node="node-1"} 0
vireo_vmi_freeze_overdue_seconds{name="late",namespace="ns",node="node-1"} 60
# HELP vireo_vmi_owner_undecided 1 for each guest on either side of a migration that is paused until it is certain which of the two nodes may let it run.
# TYPE vireo_vmi_owner_undecided gauge
vireo_vmi_owner_undecided{name="both",namespace="ns",node="node-1"} 1
vireo_vmi_owner_undecided{name="undecided",namespace="ns",node="node-1"} 1
`)); err != nil {
		t.Error(err)
	}
}
