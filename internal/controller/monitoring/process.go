// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/vireo-project/vireo/internal/component/metrics"
)

// Process returns the metrics of a virt-controller, which also does what KubeVirt's virt-operator does.
func Process(ready, leading, emulation func() bool) []prometheus.Collector {
	return []prometheus.Collector{
		metrics.NewStatus("virt_controller_ready_status", "1 if this virt-controller can become the leader.", ready),
		metrics.NewStatus("virt_controller_leading_status", "1 if this virt-controller is the leader.", leading),
		metrics.NewStatus("virt_operator_ready_status", "The same as virt_controller_ready_status.", ready),
		metrics.NewStatus("virt_operator_leading_status", "The same as virt_controller_leading_status.", leading),
		metrics.NewStatus("configuration_emulation_enabled", "1 if guests run without KVM.", emulation),
	}
}
