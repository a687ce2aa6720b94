// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/cpulist"
)

func passesNUMA(vmi *v1.VirtualMachineInstance) bool {
	cpu := vmi.Spec.Domain.CPU
	return cpu != nil && cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil
}

// configureNUMA shows the guest the cells that its vCPUs are pinned in, each with its part of the memory, which lies in
// that very cell. It comes after the pinning.
func configureNUMA(vmi *v1.VirtualMachineInstance, facts Facts, domain *libvirtxml.Domain) error {
	if !passesNUMA(vmi) || domain.Memory == nil {
		return nil
	}
	path := cpuPath.Child("numa", "guestMappingPassthrough")
	switch {
	case !vmi.IsCPUDedicated():
		return field.Invalid(path, "{}", "needs spec.domain.cpu.dedicatedCpuPlacement")
	case domain.MemoryBacking == nil || domain.MemoryBacking.MemoryHugePages == nil:
		return field.Invalid(path, "{}", "needs spec.domain.memory.hugepages")
	case len(facts.NUMACells) == 0:
		return fmt.Errorf("%s: the node's NUMA cells are %w", path, ErrNotPrepared)
	case domain.CPUTune == nil || domain.CPU == nil:
		return nil // What kept the CPUs from being pinned is told already.
	}
	cells := cellsOfVCPUs(facts.NUMACells, domain.CPUTune.VCPUPin)
	page := domain.MemoryBacking.MemoryHugePages.Hugepages[0]
	pages := domain.Memory.Value / page.Size
	if pages < uint(len(cells)) {
		return field.Invalid(domainPath.Child("memory", "guest"), fmt.Sprintf("%dKi", domain.Memory.Value),
			fmt.Sprintf("each of the %d NUMA cells of the guest needs a huge page at least", len(cells)))
	}
	domain.CPU.Numa, domain.NUMATune = &libvirtxml.DomainNuma{}, &libvirtxml.DomainNUMATune{}
	domain.MemoryBacking.MemoryHugePages.Hugepages = nil
	// Memory that is not there shows at the start and not when the guest first touches it.
	domain.MemoryBacking.MemoryAllocation = &libvirtxml.DomainMemoryAllocation{Mode: "immediate"}
	var nodes []uint
	for i, cell := range cells {
		id, node := uint(i), strconv.FormatUint(uint64(cell.node), 10)
		share := pages / uint(len(cells))
		if id < pages%uint(len(cells)) {
			share++
		}
		nodes = append(nodes, cell.node)
		domain.CPU.Numa.Cell = append(domain.CPU.Numa.Cell, libvirtxml.DomainCell{
			ID: &id, CPUs: cpulist.Format(cell.vcpus...), Memory: share * page.Size, Unit: page.Unit,
		})
		domain.NUMATune.MemNodes = append(domain.NUMATune.MemNodes, libvirtxml.DomainNUMATuneMemNode{CellID: id, Mode: "strict", Nodeset: node})
		domain.MemoryBacking.MemoryHugePages.Hugepages = append(domain.MemoryBacking.MemoryHugePages.Hugepages,
			libvirtxml.DomainMemoryHugepage{Size: page.Size, Unit: page.Unit, Nodeset: strconv.Itoa(i)})
	}
	domain.NUMATune.Memory = &libvirtxml.DomainNUMATuneMemory{Mode: "strict", Nodeset: cpulist.Format(nodes...)}
	return nil
}

// guestCell is a cell of the node and the guest's vCPUs that run in it.
type guestCell struct {
	node  uint
	vcpus []uint
}

// cellsOfVCPUs are the cells that are used, in the node's order.
func cellsOfVCPUs(cells []NUMACellFact, pins []libvirtxml.DomainCPUTuneVCPUPin) []guestCell {
	var used []guestCell
	for i := range cells {
		cell := guestCell{node: cells[i].ID}
		for _, pin := range pins {
			if slices.ContainsFunc(cells[i].CPUs, func(c CPUFact) bool { return cpulist.Format(c.ID) == pin.CPUSet }) {
				cell.vcpus = append(cell.vcpus, pin.VCPU)
			}
		}
		if len(cell.vcpus) > 0 {
			used = append(used, cell)
		}
	}
	return used
}
