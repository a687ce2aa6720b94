// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package metrics serves the metrics of a component under KubeVirt's names, and defines the metrics that all components share. The
// names, types and labels are KubeVirt's (kubevirt/kubevirt docs/observability/metrics.md), except for those with the prefix vireo_;
// docs/metrics.md lists them.
package metrics

import "github.com/prometheus/client_golang/prometheus"

// Path is the path of the metrics.
const Path = "/metrics"

// Describe describes a metric of KubeVirt's. The name has no prefix.
func Describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("kubevirt_"+name, help, labels, nil)
}

// DescribeOwn describes a metric that KubeVirt does not have. Its prefix is another, so that it cannot become one of KubeVirt's.
func DescribeOwn(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("vireo_"+name, help, labels, nil)
}

// Gauge returns a gauge with a value and the values of its labels.
func Gauge(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// Counter returns a counter with a value and the values of its labels.
func Counter(d *prometheus.Desc, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
}

// Bool returns 1 for true and 0 for false.
func Bool(value bool) float64 {
	if value {
		return 1
	}
	return 0
}
