// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"path/filepath"
	"slices"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/cpulist"
	"github.com/vireo-project/vireo/internal/domain"
)

// ReadTopology reads which of the node's CPUs share a core and memory, as libvirt of the launcher image said.
func ReadTopology(dir string) ([]domain.NUMACellFact, error) {
	var host libvirtxml.Caps
	if err := readXML(filepath.Join(dir, hostCapabilitiesFile), host.Unmarshal); err != nil {
		return nil, err
	}
	if host.Host.NUMA == nil || host.Host.NUMA.Cells == nil {
		return nil, nil
	}
	var cells []domain.NUMACellFact
	for _, c := range host.Host.NUMA.Cells.Cells {
		cell := domain.NUMACellFact{ID: uint(c.ID)}
		if c.CPUS == nil {
			continue // A cell with nothing but memory runs nothing.
		}
		for _, cpu := range c.CPUS.CPUs {
			siblings, err := cpulist.Parse(cpu.Siblings)
			if err != nil || !slices.Contains(siblings, uint(cpu.ID)) {
				siblings = []uint{uint(cpu.ID)} // libvirt does not tell for a CPU that is offline
			}
			cell.CPUs = append(cell.CPUs, domain.CPUFact{ID: uint(cpu.ID), Siblings: siblings})
		}
		cells = append(cells, cell)
	}
	return cells, nil
}
