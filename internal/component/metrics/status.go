// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package metrics

import "github.com/prometheus/client_golang/prometheus"

// Status is a gauge without labels that is 1 or 0, depending on the state of the process.
type Status struct {
	desc *prometheus.Desc
	is   func() bool
}

// NewStatus makes a Status that is 1 if the function returns true when it is scraped.
func NewStatus(name, help string, is func() bool) *Status { return &Status{Describe(name, help), is} }

// Describe implements prometheus.Collector.
func (s *Status) Describe(to chan<- *prometheus.Desc) { to <- s.desc }

// Collect implements prometheus.Collector.
func (s *Status) Collect(to chan<- prometheus.Metric) { to <- Gauge(s.desc, Bool(s.is())) }

// Closed returns a function that reports whether a channel is closed.
func Closed(c <-chan struct{}) func() bool {
	return func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
}
