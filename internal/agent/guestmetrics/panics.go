// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/component/metrics"
)

// unknownPanic is the type and the code of all panics: libvirt's event has neither. It is KubeVirt's value.
const unknownPanic = "unknown"

var panicsDesc = metrics.Describe("vmi_guest_os_panic_total",
	"Panics of the guest's kernel that its panic device has reported, until two days after the last one.",
	"namespace", "name", "type", "bugcheck_code")

// PanicCollector exports how often guests have panicked.
type PanicCollector struct {
	// Counts returns the number of panics by VMI.
	Counts func() map[types.NamespacedName]uint64
}

// Describe implements prometheus.Collector.
func (*PanicCollector) Describe(to chan<- *prometheus.Desc) { to <- panicsDesc }

// Collect implements prometheus.Collector.
func (c *PanicCollector) Collect(to chan<- prometheus.Metric) {
	for vmi, count := range c.Counts() {
		to <- metrics.Counter(panicsDesc, float64(count), vmi.Namespace, vmi.Name, unknownPanic, unknownPanic)
	}
}
