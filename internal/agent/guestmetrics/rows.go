// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestmetrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

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
	gauge("memory_actual_balloon_bytes", "Memory that the balloon leaves to the guest.", hypervisor.BalloonCurrent, kibibytes),
	gauge("memory_domain_bytes", "Memory that the guest has.", hypervisor.BalloonCurrent, kibibytes),
	gauge("dirty_rate_bytes_per_second", "How much memory the guest changed per second, at the last measurement.", hypervisor.DirtyRate, mebibytes),
}

var guestRows = []row{
	gauge("memory_available_bytes", "Memory that the guest's kernel has.", hypervisor.BalloonAvailable, kibibytes),
	gauge("memory_unused_bytes", "Memory of the guest without any use.", hypervisor.BalloonUnused, kibibytes),
	gauge("memory_usable_bytes", "Memory that the guest could return without swapping.", hypervisor.BalloonUsable, kibibytes),
	gauge("memory_cached_bytes", "Memory of the guest with caches that it could drop.", hypervisor.BalloonCaches, kibibytes),
	gauge("memory_swap_in_traffic_bytes", "What the guest has read from its swap space.", hypervisor.BalloonSwapIn, kibibytes),
	gauge("memory_swap_out_traffic_bytes", "What the guest has written to its swap space.", hypervisor.BalloonSwapOut, kibibytes),
	counter("memory_pgmajfault_total", "Page faults in the guest for which it read from a disk.", hypervisor.BalloonMajorFaults, one),
	counter("memory_pgminfault_total", "Other page faults in the guest.", hypervisor.BalloonMinorFaults, one),
}

var vcpuRows = []row{
	counter("vcpu_wait_seconds_total", "How long a vCPU waited for input and output.", hypervisor.VCPUWait, nanoseconds),
	counter("vcpu_delay_seconds_total", "How long a vCPU could run and waited for a CPU of the node.", hypervisor.VCPUDelay, nanoseconds),
}

// vcpuTime has the present state of the vCPU as a label, as in KubeVirt: the counter continues under another label when that changes.
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
	counter("network_traffic_bytes_total", "Bytes that the guest received or sent. Deprecated.", hypervisor.RxBytes, one, "type", "rx"),
	counter("network_traffic_bytes_total", "Bytes that the guest received or sent. Deprecated.", hypervisor.TxBytes, one, "type", "tx"),
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
	nodeAffinity       = metric{"node_cpu_affinity", "How many CPUs of the node the vCPUs may run on, added up.", prometheus.GaugeValue}
	filesystemCapacity = metric{"filesystem_capacity_bytes", "Size of a file system in the guest.", prometheus.GaugeValue}
	filesystemUsed     = metric{"filesystem_used_bytes", "Used part of a file system in the guest.", prometheus.GaugeValue}
	loads              = []metric{
		{"guest_load_1m", "Average number of processes in the guest that run or wait, in the last minute.", prometheus.GaugeValue},
		{"guest_load_5m", "Average number of processes in the guest that run or wait, in the last five minutes.", prometheus.GaugeValue},
		{"guest_load_15m", "Average number of processes in the guest that run or wait, in the last quarter of an hour.", prometheus.GaugeValue},
	}
)
