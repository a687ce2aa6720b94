// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
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

// Describe adds to a Guest what follows from its domain, on a node with a number of CPUs. The domain comes from the
// launcher: only names that the caller knows are used.
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
	n := len(domainRows) + len(guestRows) + affinity + (len(vcpuRows)+vcpuTimes)*g.VCPUs + len(nicRows)*len(g.NICs) +
		len(diskRows)*len(g.Disks)
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

// affinity returns how many CPUs of the node the vCPUs of a domain may run on, added up. A vCPU that is not pinned may
// run on all.
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

// metric is one metric. The name is that after kubevirt_vmi_.
type metric struct {
	name, help string
	kind       prometheus.ValueType
}

// row is the metric of a statistic.
type row struct {
	metric
	stat hypervisor.Stat
	// unit is what the statistic is multiplied with.
	unit float64
	// labels are additional labels, as pairs.
	labels []string
}

// Units of libvirt.
const (
	one         = 1
	nanoseconds = 1e-9
	kibibytes   = 1 << 10
	mebibytes   = 1 << 20
)

func counter(name, help string, stat hypervisor.Stat, unit float64, labels ...string) row {
	return row{metric{name, help, prometheus.CounterValue}, stat, unit, labels}
}

func gauge(name, help string, stat hypervisor.Stat, unit float64) row {
	return row{metric{name, help, prometheus.GaugeValue}, stat, unit, nil}
}

var domainRows = []row{
	counter("cpu_usage_seconds_total", "CPU time of QEMU, with its vCPUs.", hypervisor.CPUTime, nanoseconds),
	counter("cpu_user_usage_seconds_total", "CPU time of QEMU in user mode.", hypervisor.CPUUser, nanoseconds),
	counter("cpu_system_usage_seconds_total", "CPU time of QEMU in the kernel.", hypervisor.CPUSystem, nanoseconds),
	gauge("memory_resident_bytes", "Resident memory of QEMU.", hypervisor.BalloonRSS, kibibytes),
	gauge("memory_actual_balloon_bytes", "Memory that the balloon leaves to the guest.", hypervisor.BalloonCurrent,
		kibibytes),
	gauge("memory_domain_bytes", "Memory that the guest has.", hypervisor.BalloonCurrent, kibibytes),
	gauge("dirty_rate_bytes_per_second", "How much memory the guest changed per second, at the last measurement.",
		hypervisor.DirtyRate, mebibytes),
}

var guestRows = []row{
	gauge("memory_available_bytes", "Memory that the guest's kernel has.", hypervisor.BalloonAvailable, kibibytes),
	gauge("memory_unused_bytes", "Memory of the guest without any use.", hypervisor.BalloonUnused, kibibytes),
	gauge("memory_usable_bytes", "Memory that the guest could return without swapping.", hypervisor.BalloonUsable,
		kibibytes),
	gauge("memory_cached_bytes", "Memory of the guest with caches that it could drop.", hypervisor.BalloonCaches,
		kibibytes),
	gauge("memory_swap_in_traffic_bytes", "What the guest has read from its swap space.", hypervisor.BalloonSwapIn,
		kibibytes),
	gauge("memory_swap_out_traffic_bytes", "What the guest has written to its swap space.", hypervisor.BalloonSwapOut,
		kibibytes),
	counter("memory_pgmajfault_total", "Page faults in the guest for which it read from a disk.",
		hypervisor.BalloonMajorFaults, one),
	counter("memory_pgminfault_total", "Other page faults in the guest.", hypervisor.BalloonMinorFaults, one),
}

var vcpuRows = []row{
	counter("vcpu_wait_seconds_total", "How long a vCPU waited for input and output.", hypervisor.VCPUWait, nanoseconds),
	counter("vcpu_delay_seconds_total", "How long a vCPU could run and waited for a CPU of the node.",
		hypervisor.VCPUDelay, nanoseconds),
}

// vcpuTime has the present state of the vCPU as a label, as in KubeVirt: the counter continues under another label when
// that changes.
var vcpuTime = metric{"vcpu_seconds_total", "CPU time of a vCPU, with its present state.", prometheus.CounterValue}

// vcpuStates are the states by libvirt's numbers (virVcpuState).
var vcpuStates = []string{"offline", "running", "blocked"}

var nicRows = []row{
	counter("network_receive_bytes_total", "Bytes that the guest received.", hypervisor.RxBytes, one),
	counter("network_receive_packets_total", "Packets that the guest received.", hypervisor.RxPackets, one),
	counter("network_receive_errors_total", "Packets for the guest with an error.", hypervisor.RxErrors, one),
	counter("network_receive_packets_dropped_total", "Packets for the guest that were dropped.", hypervisor.RxDrops, one),
	counter("network_transmit_bytes_total", "Bytes that the guest sent.", hypervisor.TxBytes, one),
	counter("network_transmit_packets_total", "Packets that the guest sent.", hypervisor.TxPackets, one),
	counter("network_transmit_errors_total", "Packets of the guest with an error.", hypervisor.TxErrors, one),
	counter("network_transmit_packets_dropped_total", "Packets of the guest that were dropped.", hypervisor.TxDrops, one),
	counter("network_traffic_bytes_total", "Bytes that the guest received or sent. Deprecated.", hypervisor.RxBytes, one,
		"type", "rx"),
	counter("network_traffic_bytes_total", "Bytes that the guest received or sent. Deprecated.", hypervisor.TxBytes, one,
		"type", "tx"),
}

var diskRows = []row{
	counter("storage_iops_read_total", "Read requests of the guest.", hypervisor.ReadRequests, one),
	counter("storage_iops_write_total", "Write requests of the guest.", hypervisor.WriteRequests, one),
	counter("storage_read_traffic_bytes_total", "Bytes that the guest read.", hypervisor.ReadBytes, one),
	counter("storage_write_traffic_bytes_total", "Bytes that the guest wrote.", hypervisor.WriteBytes, one),
	counter("storage_read_times_seconds_total", "How long read requests took.", hypervisor.ReadTimes, nanoseconds),
	counter("storage_write_times_seconds_total", "How long write requests took.", hypervisor.WriteTimes, nanoseconds),
	counter("storage_flush_requests_total", "Flush requests of the guest.", hypervisor.FlushRequests, one),
	counter("storage_flush_times_seconds_total", "How long flush requests took.", hypervisor.FlushTimes, nanoseconds),
}

var (
	nodeAffinity = metric{"node_cpu_affinity", "How many CPUs of the node the vCPUs may run on, added up.",
		prometheus.GaugeValue}
	filesystemCapacity = metric{"filesystem_capacity_bytes", "Size of a file system in the guest.", prometheus.GaugeValue}
	filesystemUsed     = metric{"filesystem_used_bytes", "Used part of a file system in the guest.", prometheus.GaugeValue}
	loads              = []metric{
		{"guest_load_1m", "Average number of processes in the guest that run or wait, in the last minute.", prometheus.GaugeValue},
		{"guest_load_5m", "Average number of processes in the guest that run or wait, in the last five minutes.", prometheus.GaugeValue},
		{"guest_load_15m", "Average number of processes in the guest that run or wait, in the last quarter of an hour.", prometheus.GaugeValue},
	}
)
