// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/decide/instancetype/reference"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// maxAddresses is how many interfaces of a VMI have metrics, because a guest can report any number of interfaces.
const maxAddresses = 64

var (
	vmiInfo = metrics.Describe("vmi_info", "1 for each VMI, with what it runs and where.",
		"node", "namespace", "name", "phase", "os", "workload", "flavor", "instance_type", "preference",
		"guest_os_kernel_release", "guest_os_machine", "guest_os_arch", "guest_os_name", "guest_os_version_id",
		"evictable", "outdated", "vmi_pod")
	nonEvictable = metrics.Describe("vmi_non_evictable",
		"1 for a VMI that must migrate when its node is drained, and cannot, or is not known to be able to; 0 for others.",
		"node", "namespace", "name")
	addresses = metrics.Describe("vmi_status_addresses", "1 for each network interface of a VMI, with its address.",
		"node", "namespace", "name", "vnic_name", "interface_name", "address", "type")
	overhead = metrics.Describe("vmi_launcher_memory_overhead_bytes",
		"The memory that a launcher Pod requests beside the guest's.", "namespace", "name")
	vmiVNIC = metrics.Describe("vmi_vnic_info", "1 for each network interface in the spec of a VMI.", vnicLabels...)
)

// Annotations that describe a guest. Templates of operating systems set them. Source: kubevirt/kubevirt
// pkg/monitoring/metrics/virt-controller/vmistats_collector.go.
const (
	osAnnotation       = "vm.kubevirt.io/os"
	workloadAnnotation = "vm.kubevirt.io/workload"
	flavorAnnotation   = "vm.kubevirt.io/flavor"
)

// Types of an address.
const (
	externalInterface = "ExternalInterface"
	systemInterface   = "SystemInterface"
)

func collectVMI(o *objects, vmi *v1.VirtualMachineInstance, to chan<- prometheus.Metric) {
	node, evictable := vmi.Status.NodeName, isEvictable(vmi, o.config.EvictionStrategy)
	guest, machine := &vmi.Status.GuestOSInfo, ""
	if vmi.Status.Machine != nil {
		machine = vmi.Status.Machine.Type
	}
	to <- metrics.Gauge(vmiInfo, 1, node, vmi.Namespace, vmi.Name, strings.ToLower(string(vmi.Status.Phase)),
		metrics.Text(vmi.Annotations[osAnnotation]), metrics.Text(vmi.Annotations[workloadAnnotation]),
		metrics.Text(vmi.Annotations[flavorAnnotation]),
		o.types.ofVMI(reference.Instancetypes, vmi), o.types.ofVMI(reference.Preferences, vmi),
		metrics.Text(guest.KernelRelease), metrics.Text(machine), metrics.Text(guest.Machine), metrics.Text(guest.Name),
		metrics.Text(guest.VersionID),
		strconv.FormatBool(evictable), strconv.FormatBool(isOutdated(vmi)), o.pods[placement{string(vmi.UID), node}])
	to <- metrics.Gauge(nonEvictable, metrics.Bool(!evictable), node, vmi.Namespace, vmi.Name)
	collectAddresses(vmi, to)
	collectVNICs(vmiVNIC, vmi.Namespace, vmi.Name, &vmi.Spec, to)
	if !vmi.IsFinal() {
		bytes := podspec.MemoryOverhead(vmi, o.config.Pods())
		to <- metrics.Gauge(overhead, float64(bytes.Value()), vmi.Namespace, vmi.Name)
	}
}

// isEvictable reports whether a drain of the VMI's node neither stops the VMI nor is blocked by it. A VMI that has to
// migrate is not evictable until its agent has reported that it can migrate.
func isEvictable(vmi *v1.VirtualMachineInstance, fallback v1.EvictionStrategy) bool {
	if eviction.StrategyOf(vmi, fallback) != v1.EvictionStrategyLiveMigrate {
		return true
	}
	condition := vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceIsMigratable)
	return condition != nil && condition.Status != corev1.ConditionFalse
}

func isOutdated(vmi *v1.VirtualMachineInstance) bool {
	_, outdated := vmi.Labels[v1.OutdatedLauncherImageLabel]
	return outdated
}

// collectAddresses returns one series for each interface, with its first address, and omits duplicates.
func collectAddresses(vmi *v1.VirtualMachineInstance, to chan<- prometheus.Metric) {
	type series struct{ vnic, name, address string }
	known := map[series]bool{}
	for i := range vmi.Status.Interfaces {
		in := &vmi.Status.Interfaces[i]
		s := series{metrics.Text(in.Name), metrics.Text(in.InterfaceName), metrics.Text(in.IP)}
		if s == (series{}) || known[s] || len(known) == maxAddresses {
			continue
		}
		known[s] = true
		kind := externalInterface
		if s.address == "" {
			kind = systemInterface
		}
		to <- metrics.Gauge(addresses, 1, vmi.Status.NodeName, vmi.Namespace, vmi.Name, s.vnic, s.name, s.address, kind)
	}
}

// ownerOf returns the UID of the VMI that owns a launcher Pod.
func ownerOf(pod *corev1.Pod) string {
	if owner := podspec.Owner(pod); owner != nil {
		return string(owner.UID)
	}
	return ""
}

var (
	unset = metrics.Describe("vmi_migrations_in_unset_phase",
		"Migrations that virt-controller has not reconciled yet.")
	pending    = metrics.Describe("vmi_migrations_in_pending_phase", "Migrations that wait for a free slot.")
	scheduling = metrics.Describe("vmi_migrations_in_scheduling_phase", "Migrations whose target Pod does not run yet.")
	running    = metrics.Describe("vmi_migrations_in_running_phase",
		"Migrations from the target Pod's start to their end.")
	succeeded = metrics.Describe("vmi_migration_succeeded", "1 for each migration that succeeded and still exists.",
		"vmi", "vmim", "namespace")
	failed = metrics.Describe("vmi_migration_failed", "1 for each migration that failed and still exists.", "vmi",
		"vmim", "namespace")
	started = metrics.Describe("vmi_migration_start_time_seconds",
		"When the last migration of a VMI started to transfer, in Unix time.",
		"node", "namespace", "name", "migration_name")
	ended = metrics.Describe("vmi_migration_end_time_seconds", "When the last migration of a VMI ended, in Unix time.",
		"node", "namespace", "name", "migration_name", "status")
	outdated = metrics.Describe("vmi_number_of_outdated",
		"Guests that run with a launcher other than the one that is configured.")
)

func collectMigrations(migrations []v1.VirtualMachineInstanceMigration, to chan<- prometheus.Metric) {
	in := map[*prometheus.Desc]int{unset: 0, pending: 0, scheduling: 0, running: 0}
	for i := range migrations {
		m := &migrations[i]
		switch m.Status.Phase {
		case v1.MigrationPhaseUnset:
			in[unset]++
		case v1.MigrationPending:
			in[pending]++
		case v1.MigrationScheduling:
			in[scheduling]++
		case v1.MigrationSucceeded:
			to <- metrics.Gauge(succeeded, 1, m.Spec.VMIName, m.Name, m.Namespace)
		case v1.MigrationFailed:
			to <- metrics.Gauge(failed, 1, m.Spec.VMIName, m.Name, m.Namespace)
		default:
			in[running]++
		}
	}
	for d, n := range in {
		to <- metrics.Gauge(d, float64(n))
	}
}

// collectMigrationTimes collects the times of the migrations of VMIs, and counts the VMIs with an outdated launcher.
func collectMigrationTimes(
	vmis []v1.VirtualMachineInstance, migrations []v1.VirtualMachineInstanceMigration, to chan<- prometheus.Metric,
) {
	names := make(map[types.UID]string, len(migrations))
	for i := range migrations {
		names[migrations[i].UID] = migrations[i].Name
	}
	old := 0
	for i := range vmis {
		vmi := &vmis[i]
		if isOutdated(vmi) && vmistatus.StageOf(vmi.Status.Phase) == vmistatus.Live {
			old++
		}
		m := vmi.Status.MigrationState
		if m == nil {
			continue
		}
		if m.StartTimestamp != nil {
			to <- metrics.Gauge(started, float64(m.StartTimestamp.Unix()), vmi.Status.NodeName, vmi.Namespace, vmi.Name,
				names[m.MigrationUID])
		}
		if m.EndTimestamp != nil {
			to <- metrics.Gauge(ended, float64(m.EndTimestamp.Unix()), vmi.Status.NodeName, vmi.Namespace, vmi.Name,
				names[m.MigrationUID], outcome(m))
		}
	}
	to <- metrics.Gauge(outdated, float64(old))
}

func outcome(m *v1.VirtualMachineInstanceMigrationState) string {
	switch {
	case m.Failed:
		return "failed"
	case m.Completed:
		return "succeeded"
	default:
		return ""
	}
}
