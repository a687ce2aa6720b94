// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/component/version"
)

// Node returns the metrics of the process and of its node, with the machine types that QEMU calls deprecated.
func Node(node string, deprecated []string, ready func() bool) []prometheus.Collector {
	build := version.Get()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubevirt_info", Help: "1, with the version of this build.",
		ConstLabels: prometheus.Labels{"goversion": build.GoVersion, "kubeversion": build.GitVersion},
	})
	info.Set(1)
	machines := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubevirt_node_deprecated_machine_types", Help: "1 for each machine type of the node that QEMU calls deprecated.",
	}, []string{"machine_type", "node"})
	for _, machine := range deprecated {
		machines.WithLabelValues(machine, node).Set(1)
	}
	return []prometheus.Collector{info, machines, metrics.NewStatus("virt_handler_ready_status", "1 if this virt-handler is ready.", ready)}
}
