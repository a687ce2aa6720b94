// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package domain

import "slices"

// cpuPool allocates the dedicated CPUs of a Pod. Where possible, a core of the guest is a core of the node, so that the
// guest knows which of its threads share caches.
type cpuPool struct {
	cells []poolCell
	// threads is the number of threads in a core of the guest.
	threads int
}

// poolCell has the free CPUs of a NUMA cell.
type poolCell struct {
	id uint
	// cores are the cores of the node with enough free CPUs for a core of the guest.
	cores [][]uint
	// rest are the free CPUs of the other cores.
	rest []uint
}

// newCPUPool groups the CPUs by cell and core. Without a topology, each CPU is a core, and all are in one cell.
func newCPUPool(cells []NUMACellFact, cpus []uint, threads uint) *cpuPool {
	if len(cells) == 0 {
		cells = []NUMACellFact{{}}
		for _, id := range cpus {
			cells[0].CPUs = append(cells[0].CPUs, CPUFact{ID: id})
		}
	}
	pool := &cpuPool{threads: int(threads)}
	for i := range cells {
		cell := poolCell{id: cells[i].ID}
		for _, core := range coresOf(&cells[i], cpus) {
			if len(core) >= pool.threads {
				cell.cores = append(cell.cores, core)
			} else {
				cell.rest = append(cell.rest, core...)
			}
		}
		pool.cells = append(pool.cells, cell)
	}
	return pool
}

// coresOf groups the usable CPUs of a cell by core.
func coresOf(cell *NUMACellFact, usable []uint) [][]uint {
	var cores [][]uint
	seen := map[uint]bool{}
	for _, cpu := range cell.CPUs {
		siblings := cpu.Siblings
		if len(siblings) == 0 {
			siblings = []uint{cpu.ID}
		}
		var core []uint
		for _, id := range siblings {
			if !seen[id] && slices.Contains(usable, id) {
				core = append(core, id)
			}
			seen[id] = true
		}
		if len(core) > 0 {
			cores = append(cores, core)
		}
	}
	return cores
}

// take allocates CPUs for a number of cores of the guest and returns them in the order of its vCPUs: first whole cores,
// then CPUs of different cores in one cell, and then, unless strict, CPUs of different cells. missing is the number of
// cores without CPUs.
func (p *cpuPool) take(cores int, strict bool) (cpus []uint, missing int) {
	for _, next := range []func(*poolCell) []uint{p.wholeCore, p.sameCell} {
		for i := range p.cells {
			for cores > 0 {
				taken := next(&p.cells[i])
				if taken == nil {
					break
				}
				cpus = append(cpus, taken...)
				cores--
			}
		}
	}
	if strict || cores == 0 {
		return cpus, cores
	}
	wanted := cores * p.threads
	for i := range p.cells {
		cell := &p.cells[i]
		n := min(wanted, len(cell.rest))
		cpus = append(cpus, cell.rest[:n]...)
		cell.rest = cell.rest[n:]
		wanted -= n
	}
	return cpus, (wanted + p.threads - 1) / p.threads
}

func (p *cpuPool) wholeCore(cell *poolCell) []uint {
	if len(cell.cores) == 0 {
		return nil
	}
	core := cell.cores[0]
	taken, left := core[:p.threads], core[p.threads:]
	if len(left) >= p.threads {
		cell.cores[0] = left
	} else {
		cell.cores, cell.rest = cell.cores[1:], append(cell.rest, left...)
	}
	return taken
}

func (p *cpuPool) sameCell(cell *poolCell) []uint {
	if len(cell.rest) < p.threads {
		return nil
	}
	taken := cell.rest[:p.threads]
	cell.rest = cell.rest[p.threads:]
	return taken
}

// one allocates a single CPU, if possible from a core that is partly allocated.
func (p *cpuPool) one() (uint, bool) {
	for i := range p.cells {
		cell := &p.cells[i]
		switch {
		case len(cell.rest) > 0:
			cpu := cell.rest[0]
			cell.rest = cell.rest[1:]
			return cpu, true
		case len(cell.cores) > 0:
			core := cell.cores[0]
			cell.cores, cell.rest = cell.cores[1:], slices.Clone(core[1:])
			return core[0], true
		}
	}
	return 0, false
}

// remaining allocates all free CPUs.
func (p *cpuPool) remaining() []uint {
	var cpus []uint
	for {
		cpu, ok := p.one()
		if !ok {
			slices.Sort(cpus)
			return cpus
		}
		cpus = append(cpus, cpu)
	}
}
