// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestQueuesHaveKubeVirtsNames(t *testing.T) {
	r := prometheus.NewRegistry()
	depth := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_depth", Help: "h"}, []string{"name", "controller", "priority"})
	adds := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_adds_total", Help: "h"}, []string{"name", "controller"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "workqueue_work_duration_seconds", Help: "h", Buckets: []float64{1}, NativeHistogramBucketFactor: 1.1,
	}, []string{"name", "controller"})
	other := prometheus.NewCounter(prometheus.CounterOpts{Name: "workqueue_other_total", Help: "h"})
	r.MustRegister(depth, adds, took, other)
	depth.WithLabelValues("node", "node", "0").Set(2)
	depth.WithLabelValues("node", "node", "-100").Set(3)
	depth.WithLabelValues("mine", "mine", "").Set(1)
	adds.WithLabelValues("node", "node").Add(7)
	took.WithLabelValues("node", "node").Observe(0.5)

	want := `
# HELP kubevirt_workqueue_adds_total h
# TYPE kubevirt_workqueue_adds_total counter
kubevirt_workqueue_adds_total{name="virt-controller-node"} 7
# HELP kubevirt_workqueue_depth h
# TYPE kubevirt_workqueue_depth gauge
kubevirt_workqueue_depth{name="mine"} 1
kubevirt_workqueue_depth{name="virt-controller-node"} 5
# HELP kubevirt_workqueue_work_duration_seconds h
# TYPE kubevirt_workqueue_work_duration_seconds histogram
kubevirt_workqueue_work_duration_seconds_bucket{name="virt-controller-node",le="1"} 1
kubevirt_workqueue_work_duration_seconds_bucket{name="virt-controller-node",le="+Inf"} 1
kubevirt_workqueue_work_duration_seconds_sum{name="virt-controller-node"} 0.5
kubevirt_workqueue_work_duration_seconds_count{name="virt-controller-node"} 1
`
	names := map[string]string{"node": "virt-controller-node"}
	if err := testutil.GatherAndCompare(queues{from: r, names: names, only: true}, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	families, err := queues{from: r, names: names}.Gather()
	if err != nil || len(families) != 4+3 {
		t.Errorf("%d families (%v): the registry's own are missing", len(families), err)
	}
}

// slow is a gatherer that takes some time.
type slow struct {
	clock *clocktesting.FakePassiveClock
	takes time.Duration
	calls int
}

func (s *slow) Gather() ([]*dto.MetricFamily, error) {
	s.calls++
	s.clock.SetTime(s.clock.Now().Add(s.takes))
	return nil, nil
}

// A client that requests the metrics without a pause makes the component gather them for a tenth of the time.
func TestGatheringIsShared(t *testing.T) {
	for name, tc := range map[string]struct {
		takes, fresh, again time.Duration
	}{
		"quick":     {time.Millisecond, minAge - time.Millisecond, minAge},
		"slow":      {400 * time.Millisecond, 3500 * time.Millisecond, 3600 * time.Millisecond},
		"very slow": {5 * time.Second, maxAge - time.Millisecond, maxAge},
	} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			from := &slow{clock: clock, takes: tc.takes}
			s := &shared{from: from, clock: clock}
			gather := func(want int) {
				t.Helper()
				if _, err := s.Gather(); err != nil || from.calls != want {
					t.Errorf("gathered %d times (%v), want %d", from.calls, err, want)
				}
			}
			gather(1)
			ended := clock.Now()
			clock.SetTime(ended.Add(tc.fresh))
			gather(1)
			clock.SetTime(ended.Add(tc.again))
			gather(2)
		})
	}
}
