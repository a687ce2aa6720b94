// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package handover

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kubevirt_vmi_migration_"+name, help, []string{"namespace", "name", "node"}, nil)
}

// figure is one number about a copy. Names and labels are KubeVirt's (docs/observability/metrics.md), and memory and copied disks are
// added up as there.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*hypervisor.CopyProgress) uint64
}

var told = []figure{
	{
		describe("data_bytes_total", "How much is to be copied: the guest's memory and the disks that move with it."), prometheus.CounterValue,
		func(p *hypervisor.CopyProgress) uint64 { return p.Memory.Total + p.Disk.Total },
	},
	{
		describe("data_processed_bytes", "How much was copied so far."), prometheus.GaugeValue,
		func(p *hypervisor.CopyProgress) uint64 { return p.Memory.Processed + p.Disk.Processed },
	},
	{
		describe("data_remaining_bytes", "How much is left to copy. The guest may add to it."), prometheus.GaugeValue,
		func(p *hypervisor.CopyProgress) uint64 { return p.Memory.Remaining + p.Disk.Remaining },
	},
	{
		describe("dirty_memory_rate_bytes", "How many bytes of memory the guest changes in a second."), prometheus.GaugeValue,
		func(p *hypervisor.CopyProgress) uint64 { return p.DirtyBytesPerSecond },
	},
	{
		describe("memory_transfer_rate_bytes", "How many bytes of memory are sent in a second."), prometheus.GaugeValue,
		func(p *hypervisor.CopyProgress) uint64 { return p.Memory.BytesPerSecond },
	},
}

// metrics tells how far copies are, by what libvirt has said last. Nothing is asked for the sake of a scrape.
type metrics struct {
	copies *Copies
	node   string
}

// Metrics are those of the guests that leave a node, while they do.
func (c *Copies) Metrics(node string) prometheus.Collector { return &metrics{c, node} }

// Describe is part of prometheus.Collector.
func (*metrics) Describe(to chan<- *prometheus.Desc) {
	for i := range told {
		to <- told[i].desc
	}
}

// Collect is part of prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.copies.underWay() {
		progress := c.State().Progress
		if progress == nil || progress.Memory.Total == 0 {
			continue // QEMU has not begun.
		}
		for i := range told {
			f := &told[i]
			to <- prometheus.MustNewConstMetric(f.desc, f.kind, float64(f.of(progress)), c.vmi.Namespace, c.vmi.Name, m.node)
		}
	}
}

// underWay are the copies that have not ended. A guest has one at most.
func (c *Copies) underWay() []*Copy {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(c.copies)), func(one *Copy) bool { return !one.State().Running })
}
