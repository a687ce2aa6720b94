// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/domain"
)

// ReadTopology reads which of the node's CPUs share a core and which share memory, as libvirt of the launcher image reported it.
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
			continue // A cell without CPUs has only memory.
		}
		for _, cpu := range c.CPUS.CPUs {
			cell.CPUs = append(cell.CPUs, domain.CPUFact{ID: uint(cpu.ID), Siblings: siblings(cpu)})
		}
		cells = append(cells, cell)
	}
	return cells, nil
}

// maxCPU is the highest ID of a CPU of which siblings are read: Linux has at most 8192 CPUs.
const maxCPU = 8191

// siblings returns the CPUs on the core of a CPU, itself included. libvirt leaves the list out for a CPU that is offline.
func siblings(cpu libvirtxml.CapsHostNUMACPU) []uint {
	alone := []uint{uint(cpu.ID)}
	// Parse makes an entry for each CPU of a range.
	for number := range strings.FieldsFuncSeq(cpu.Siblings, func(r rune) bool { return r == ',' || r == '-' }) {
		if id, err := strconv.Atoi(number); err != nil || id > maxCPU {
			return alone
		}
	}
	set, err := cpuset.Parse(cpu.Siblings)
	if err != nil || !set.Contains(cpu.ID) {
		return alone
	}
	ids := make([]uint, 0, set.Size())
	for _, id := range set.List() {
		ids = append(ids, uint(id))
	}
	return ids
}
