// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/component/version"
)

// Node returns the metrics of the process and of its node, with the machine types that QEMU calls deprecated. ready reports whether the
// process is ready, and brokerResponds whether the virt-broker of its node responds.
func Node(node string, deprecated []string, ready, brokerResponds func() bool) []prometheus.Collector {
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
	silent := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "vireo_node_broker_silent", Help: "1 if a program of virt-broker's Pod on the node does not respond to its virt-handler.",
		ConstLabels: prometheus.Labels{"node": node},
	}, func() float64 { return metrics.Bool(!brokerResponds()) })
	return []prometheus.Collector{
		info, machines, silent, metrics.NewStatus("virt_handler_ready_status", "1 if this virt-handler is ready.", ready),
	}
}
