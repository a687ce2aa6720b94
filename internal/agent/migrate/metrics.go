// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package migrate

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubevirt_vmi_migration_"+name, help, []string{"namespace", "name", "node"}, nil)
}

// metric is one metric of a transfer. Names and labels are KubeVirt's (docs/observability/metrics.md in its
// repository), and so is the sum of memory and copied disks.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*hypervisor.TransferProgress) uint64
}

var transferMetrics = []metric{
	{
		describe("data_bytes_total", "Bytes to transfer: the guest's memory and the disks that are copied."),
		prometheus.CounterValue, func(p *hypervisor.TransferProgress) uint64 { return p.Memory.Total + p.Disk.Total },
	},
	{
		describe("data_processed_bytes", "Bytes transferred so far."), prometheus.GaugeValue,
		func(p *hypervisor.TransferProgress) uint64 { return p.Memory.Processed + p.Disk.Processed },
	},
	{
		describe("data_remaining_bytes", "Bytes left to transfer. They grow when the guest changes memory."),
		prometheus.GaugeValue, func(p *hypervisor.TransferProgress) uint64 { return p.Memory.Remaining + p.Disk.Remaining },
	},
	{
		describe("dirty_memory_rate_bytes", "Bytes of memory that the guest changes per second."), prometheus.GaugeValue,
		func(p *hypervisor.TransferProgress) uint64 { return p.DirtyBytesPerSecond },
	},
	{
		describe("memory_transfer_rate_bytes", "Bytes of memory sent per second."), prometheus.GaugeValue,
		func(p *hypervisor.TransferProgress) uint64 { return p.Memory.BytesPerSecond },
	},
}

// collector exports the progress of transfers that was read last. A scrape does not call libvirt.
type collector struct {
	transfers *Transfers
	node      string
}

// Metrics returns the metrics of the transfers that run.
func (t *Transfers) Metrics(node string) prometheus.Collector { return &collector{t, node} }

// Describe implements prometheus.Collector.
func (*collector) Describe(to chan<- *prometheus.Desc) {
	for i := range transferMetrics {
		to <- transferMetrics[i].desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	for _, transfer := range c.transfers.running() {
		progress := transfer.State().Progress
		if progress == nil || progress.Memory.Total == 0 {
			continue // QEMU has not started to send.
		}
		for i := range transferMetrics {
			m := &transferMetrics[i]
			value := float64(m.value(progress))
			to <- prometheus.MustNewConstMetric(m.desc, m.kind, value, transfer.vmi.Namespace, transfer.vmi.Name, c.node)
		}
	}
}

// running returns the transfers that have not ended. A guest has at most one.
func (t *Transfers) running() []*Transfer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(t.transfers)),
		func(one *Transfer) bool { return !one.State().Running })
}
