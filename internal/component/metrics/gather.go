// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

const (
	// minAge and maxAge bound how long a result is cached.
	minAge, maxAge = time.Second, 10 * time.Second
	// ageFactor is how long a result is cached within these bounds, as a multiple of the time that gathering took. So gathering takes
	// at most a tenth of a CPU, however often clients, which need not authenticate, request the metrics.
	ageFactor = 9
)

// queues adds KubeVirt's metrics of work queues to those of a registry. controller-runtime's are the same, with another prefix
// and other labels. It registers itself with client-go, which accepts only one registration.
type queues struct {
	from prometheus.Gatherer
	// names are KubeVirt's names of the queues, by the names of the controllers.
	names map[string]string
	// only reports whether the other metrics of the registry are left out.
	only bool
}

// queueMetrics are the metrics of work queues by controller-runtime's names.
var queueMetrics = map[string]bool{
	"workqueue_depth": true, "workqueue_adds_total": true, "workqueue_retries_total": true, "workqueue_queue_duration_seconds": true,
	"workqueue_work_duration_seconds": true, "workqueue_unfinished_work_seconds": true, "workqueue_longest_running_processor_seconds": true,
}

// Gather implements prometheus.Gatherer.
func (q queues) Gather() ([]*dto.MetricFamily, error) {
	families, err := q.from.Gather()
	var translated []*dto.MetricFamily
	for _, family := range families {
		if queueMetrics[family.GetName()] {
			translated = append(translated, q.translate(family))
		}
	}
	if q.only {
		return translated, err
	}
	return append(families, translated...), err
}

// translate returns a family with KubeVirt's name and the label name only. Depths of different priorities are added.
func (q queues) translate(family *dto.MetricFamily) *dto.MetricFamily {
	out := &dto.MetricFamily{Name: ptr.To("kubevirt_" + family.GetName()), Help: family.Help, Type: family.Type, Unit: family.Unit}
	byName := map[string]*dto.Metric{}
	for _, metric := range family.Metric {
		name := q.nameOf(metric)
		known, ok := byName[name]
		if !ok {
			translated := &dto.Metric{
				Label: []*dto.LabelPair{{Name: ptr.To("name"), Value: &name}}, Counter: metric.Counter, Histogram: classic(metric.Histogram),
			}
			if metric.Gauge != nil {
				translated.Gauge = &dto.Gauge{Value: ptr.To(metric.Gauge.GetValue())}
			}
			byName[name], out.Metric = translated, append(out.Metric, translated)
			continue
		}
		if known.Gauge != nil {
			*known.Gauge.Value += metric.Gauge.GetValue()
		}
	}
	return out
}

func (q queues) nameOf(metric *dto.Metric) string {
	for _, label := range metric.Label {
		if label.GetName() == "name" {
			if name, ok := q.names[label.GetValue()]; ok {
				return name
			}
			return label.GetValue()
		}
	}
	return ""
}

// classic returns a histogram without its native part, which KubeVirt's do not have.
func classic(h *dto.Histogram) *dto.Histogram {
	if h == nil {
		return nil
	}
	return &dto.Histogram{SampleCount: h.SampleCount, SampleSum: h.SampleSum, Bucket: h.Bucket}
}

// shared gathers once for requests that arrive at the same time or shortly after each other.
type shared struct {
	from  prometheus.Gatherer
	clock clock.PassiveClock

	mu       sync.Mutex
	families []*dto.MetricFamily
	err      error
	until    time.Time
}

// Gather implements prometheus.Gatherer. The result must not be changed.
func (s *shared) Gather() ([]*dto.MetricFamily, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if started := s.clock.Now(); !started.Before(s.until) {
		s.families, s.err = s.from.Gather()
		ended := s.clock.Now()
		s.until = ended.Add(min(max(ageFactor*ended.Sub(started), minAge), maxAge))
	}
	return s.families, s.err
}
