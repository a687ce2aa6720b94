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
)

func passesNUMA(vmi *v1.VirtualMachineInstance) bool {
	cpu := vmi.Spec.Domain.CPU
	return cpu != nil && cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil
}

// configureNUMA gives the guest a NUMA cell for each cell of the node that its vCPUs are pinned to. The memory of the
// guest is divided among the cells, and allocated from the same cells of the node. It reads the pinning of
// configureDedicatedCPUs.
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
		return nil // configureDedicatedCPUs has returned an error.
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
	// Missing memory is an error at the start, and not when the guest first uses the page.
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
			ID: &id, CPUs: idList(cell.vcpus...), Memory: share * page.Size, Unit: page.Unit,
		})
		domain.NUMATune.MemNodes = append(domain.NUMATune.MemNodes,
			libvirtxml.DomainNUMATuneMemNode{CellID: id, Mode: "strict", Nodeset: node})
		domain.MemoryBacking.MemoryHugePages.Hugepages = append(domain.MemoryBacking.MemoryHugePages.Hugepages,
			libvirtxml.DomainMemoryHugepage{Size: page.Size, Unit: page.Unit, Nodeset: strconv.Itoa(i)})
	}
	domain.NUMATune.Memory = &libvirtxml.DomainNUMATuneMemory{Mode: "strict", Nodeset: idList(nodes...)}
	return nil
}

// guestCell is a NUMA cell of the node with the vCPUs that are pinned to it.
type guestCell struct {
	node  uint
	vcpus []uint
}

// cellsOfVCPUs returns the cells with vCPUs, in the node's order.
func cellsOfVCPUs(cells []NUMACellFact, pins []libvirtxml.DomainCPUTuneVCPUPin) []guestCell {
	var used []guestCell
	for i := range cells {
		cell := guestCell{node: cells[i].ID}
		for _, pin := range pins {
			if slices.ContainsFunc(cells[i].CPUs, func(c CPUFact) bool { return idList(c.ID) == pin.CPUSet }) {
				cell.vcpus = append(cell.vcpus, pin.VCPU)
			}
		}
		if len(cell.vcpus) > 0 {
			used = append(used, cell)
		}
	}
	return used
}
