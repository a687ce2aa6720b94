// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"
)

// phase is a result: what happened during a phase.
type phase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Values  []value `json:"values,omitempty"`
	// Requests are the numbers of requests by process, and then by verb and resource.
	Requests map[string]map[string]int `json:"requests"`
	// Writes are the numbers of writes by process, without heartbeats: those of Leases and of Nodes.
	Writes map[string]int `json:"writes"`
	// Processes are what each process used.
	Processes map[string]processUsage `json:"processes"`
	// Watches are the events that the API server sent to all watches, by resource.
	Watches map[string]watchTraffic `json:"watches"`
}

// value is a figure of one phase only.
type value struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

type processUsage struct {
	CPUSeconds float64 `json:"cpuSeconds"`
	// PeakMiB and EndMiB are resident memory: the most during the phase, and at its end.
	PeakMiB float64 `json:"peakMiB"`
	EndMiB  float64 `json:"endMiB"`
}

type watchTraffic struct {
	Events int64   `json:"events"`
	MiB    float64 `json:"MiB"`
}

func (p *phase) value(name string, v float64, unit string) {
	p.Values = append(p.Values, value{Name: name, Value: v, Unit: unit})
}

const mebibyte = 1 << 20

// state is what was counted until a moment.
type state struct {
	when     time.Time
	requests map[request]int
	usages   map[*process]usage
	watches  map[string]watchTraffic
}

// observe reads all counters.
func (w *world) observe(ctx context.Context) (*state, error) {
	s := &state{when: time.Now(), requests: w.audit.snapshot(), usages: map[*process]usage{}}
	for _, p := range w.processes {
		u, err := p.usage()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		s.usages[p] = u
	}
	var err error
	s.watches, err = w.watchTraffic(ctx)
	return s, err
}

// measure runs a phase and returns what happened meanwhile.
func (w *world) measure(ctx context.Context, name string, do func(context.Context, *phase) error) (*phase, error) {
	for _, p := range w.processes {
		if err := p.resetPeak(); err != nil {
			return nil, err
		}
	}
	before, err := w.observe(ctx)
	if err != nil {
		return nil, err
	}
	p := &phase{Name: name, Requests: map[string]map[string]int{}, Writes: map[string]int{},
		Processes: map[string]processUsage{}, Watches: map[string]watchTraffic{}}
	if err := do(ctx, p); err != nil {
		return nil, err
	}
	after, err := w.observe(ctx)
	if err != nil {
		return nil, err
	}
	p.Seconds = after.when.Sub(before.when).Seconds()
	p.addRequests(before, after)
	for process, u := range after.usages {
		p.Processes[process.name] = processUsage{
			CPUSeconds: (u.cpu - before.usages[process].cpu).Seconds(), PeakMiB: float64(u.peak) / mebibyte,
			EndMiB: float64(u.resident) / mebibyte,
		}
	}
	for resource, t := range after.watches {
		t.Events -= before.watches[resource].Events
		t.MiB -= before.watches[resource].MiB
		if t.Events > 0 {
			p.Watches[resource] = t
		}
	}
	return p, nil
}

func (p *phase) addRequests(before, after *state) {
	for r, count := range after.requests {
		if count -= before.requests[r]; count == 0 {
			continue
		}
		if p.Requests[r.component] == nil {
			p.Requests[r.component] = map[string]int{}
		}
		p.Requests[r.component][r.verb+" "+r.resource] += count
		if r.changes() {
			p.Writes[r.component] += count
		}
	}
}

// watchEvents is the API server's histogram of the sizes of events that it sent to watches.
const watchEvents = "apiserver_watch_events_sizes"

// watchTraffic reads the API server's metrics.
func (w *world) watchTraffic(ctx context.Context) (map[string]watchTraffic, error) {
	set, err := kubernetes.NewForConfig(w.config)
	if err != nil {
		return nil, err
	}
	text, err := set.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	traffic := map[string]watchTraffic{}
	for _, metric := range families[watchEvents].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "resource" {
				t := traffic[label.GetValue()]
				t.Events += int64(metric.GetHistogram().GetSampleCount())
				t.MiB += metric.GetHistogram().GetSampleSum() / mebibyte
				traffic[label.GetValue()] = t
			}
		}
	}
	return traffic, nil
}
