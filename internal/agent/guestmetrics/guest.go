// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"strings"

	"libvirt.org/go/libvirtxml"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
)

// Guest is a running guest of this node.
type Guest struct {
	// Pod is its launcher Pod.
	Pod hypervisor.PodRef
	// Domain is the name of its domain.
	Domain string
	// Labels are those of its VMI.
	Labels map[string]string
	// NICs and Disks are the names that the VMI gives its interfaces and disks, by the names that libvirt gives them.
	NICs, Disks map[string]string
	// Affinity is how many CPUs of the node its vCPUs may run on, added up.
	Affinity int
	// VCPUs is how many vCPUs its VMI has. A launcher could report more.
	VCPUs int
	// Migrating reports whether it is being transferred to another node.
	Migrating bool
}

// Describe adds to a Guest what follows from its domain, on a node with a number of CPUs. The domain comes from the launcher: only
// names that the caller knows are used.
func (g *Guest) Describe(d *libvirtxml.Domain, nics, disks []string, cpus int) {
	g.NICs, g.Disks = map[string]string{}, map[string]string{}
	if d == nil {
		return
	}
	if d.Devices != nil {
		known := aliases(nics, domain.InterfaceAlias)
		for i := range d.Devices.Interfaces {
			in := &d.Devices.Interfaces[i]
			if in.Target != nil && in.Alias != nil {
				if name, ok := known[in.Alias.Name]; ok {
					g.NICs[in.Target.Dev] = name
				}
			}
		}
		known = aliases(disks, domain.DiskAlias)
		for i := range d.Devices.Disks {
			disk := &d.Devices.Disks[i]
			if disk.Target != nil && disk.Alias != nil {
				if name, ok := known[disk.Alias.Name]; ok {
					g.Disks[disk.Target.Dev] = name
				}
			}
		}
	}
	g.Affinity = affinity(d, cpus)
}

// series returns how many metrics the guest has at most, with the last report of its agent or nil.
func (g *Guest) series(usage *hypervisor.GuestUsage) int {
	const affinity, vcpuTimes = 1, 1
	n := len(domainRows) + len(guestRows) + affinity + (len(vcpuRows)+vcpuTimes)*g.VCPUs + len(nicRows)*len(g.NICs) + len(diskRows)*len(g.Disks)
	if usage != nil {
		n += 2*len(usage.Filesystems) + len(loads)
	}
	return n
}

// aliases returns names by the alias of their device.
func aliases(names []string, alias func(string) string) map[string]string {
	out := make(map[string]string, len(names))
	for _, name := range names {
		out[alias(name)] = name
	}
	return out
}

// affinity returns how many CPUs of the node the vCPUs of a domain may run on, added up. A vCPU that is not pinned may run on all.
func affinity(d *libvirtxml.Domain, cpus int) int {
	if d.VCPU == nil {
		return 0
	}
	const most = 4096 // more than a domain can have
	vcpus := int(min(d.VCPU.Value, most))
	if d.VCPU.Current > 0 {
		vcpus = int(min(d.VCPU.Current, d.VCPU.Value, most))
	}
	total := vcpus * cpus
	if d.CPUTune == nil {
		return total
	}
	pinned := map[uint]bool{}
	for _, pin := range d.CPUTune.VCPUPin {
		if int(pin.VCPU) < vcpus && !pinned[pin.VCPU] {
			pinned[pin.VCPU] = true
			total += min(countCPUs(pin.CPUSet), cpus) - cpus
		}
	}
	return total
}

// countCPUs returns how many CPUs a list of libvirt has, as 0-3,8,^2.
func countCPUs(list string) int {
	count := 0
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		switch first, last, isRange := strings.Cut(part, "-"); {
		case part == "":
		case strings.HasPrefix(part, "^"):
			count--
		case isRange:
			if from, to := number(first), number(last); to >= from {
				count += to - from + 1
			}
		default:
			count++
		}
	}
	return max(count, 0)
}

// number returns a short decimal number, or 0.
func number(text string) int {
	n := 0
	for _, r := range text {
		if r < '0' || r > '9' || n > 1<<16 {
			return 0
		}
		n = n*10 + int(r-'0')
	}
	return n
}
