// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain_test

import (
	"testing"

	"k8s.io/utils/ptr"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
)

// numa returns a guest with the cells of the hyperthreaded node.
func numa(memory string, sockets uint32, cpus ...uint) *guest {
	return dedicated(sockets, 1, cpus...).domainSpec(guestMemory(memory, "2Mi")).
		cpu(func(c *v1.CPU) { c.NUMA = &v1.NUMA{GuestMappingPassthrough: &v1.NUMAGuestMappingPassthrough{}} })
}

func TestNUMAPassthrough(t *testing.T) {
	got := numa("10Mi", 3, 0, 4, 3).build(t)
	expectEqual(t, got.CPU.Numa, &libvirtxml.DomainNuma{Cell: []libvirtxml.DomainCell{
		{ID: ptr.To[uint](0), CPUs: "0,1", Memory: 6144, Unit: "KiB"}, // the odd page is the first cell's
		{ID: ptr.To[uint](1), CPUs: "2", Memory: 4096, Unit: "KiB"},
	}})
	expectEqual(t, got.NUMATune, &libvirtxml.DomainNUMATune{
		Memory: &libvirtxml.DomainNUMATuneMemory{Mode: "strict", Nodeset: "0,1"},
		MemNodes: []libvirtxml.DomainNUMATuneMemNode{
			{CellID: 0, Mode: "strict", Nodeset: "0"}, {CellID: 1, Mode: "strict", Nodeset: "1"},
		},
	})
	expectEqual(t, got.MemoryBacking, &libvirtxml.DomainMemoryBacking{
		MemoryHugePages: &libvirtxml.DomainMemoryHugepages{Hugepages: []libvirtxml.DomainMemoryHugepage{
			{Size: 2048, Unit: "KiB", Nodeset: "0"}, {Size: 2048, Unit: "KiB", Nodeset: "1"},
		}},
		MemorySource:     &libvirtxml.DomainMemorySource{Type: "memfd"},
		MemoryAllocation: &libvirtxml.DomainMemoryAllocation{Mode: "immediate"},
	})
	// The guest's cells are numbered from 0, independent of the node's IDs.
	second := numa("4Mi", 1, 2).build(t)
	expectEqual(t, second.CPU.Numa.Cell,
		[]libvirtxml.DomainCell{{ID: ptr.To[uint](0), CPUs: "0", Memory: 4096, Unit: "KiB"}})
	expectEqual(t, second.NUMATune.MemNodes, []libvirtxml.DomainNUMATuneMemNode{{CellID: 0, Mode: "strict", Nodeset: "1"}})
}

func TestNUMAPassthroughRefused(t *testing.T) {
	path := "spec.domain.cpu.numa.guestMappingPassthrough"
	numa("4Mi", 2, 0, 2).cpu(func(c *v1.CPU) { c.Sockets, c.Threads = 1, 2 }).expectRefused(t, path, "fewer threads")
	numa("4Mi", 1, 0).cpu(func(c *v1.CPU) { c.DedicatedCPUPlacement = false }).expectRefused(t, path,
		"dedicatedCpuPlacement")
	numa("4Mi", 1, 0).domainSpec(guestMemory("4Mi", "")).expectRefused(t, path, "hugepages")
	numa("2Mi", 2, 0, 2).expectRefused(t, "spec.domain.memory.guest", "each of the 2 NUMA cells")
	numa("4Mi", 3, 0, 2).expectRefused(t, "spec.domain.cpu.dedicatedCpuPlacement", "needs 3")
	numa("4Mi", 1, 0).on(func(f *domain.Facts) { f.NUMACells = nil }).expectNotPrepared(t, path)
}
