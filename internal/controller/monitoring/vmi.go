// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package monitoring

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/component/metrics"
	"github.com/vireo-project/vireo/internal/instancetype/reference"
	"github.com/vireo-project/vireo/internal/migration/eviction"
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
		"1 for a VMI that must migrate when its node is drained, and cannot, or is not known to be able to; 0 for others.", "node", "namespace", "name")
	addresses = metrics.Describe("vmi_status_addresses", "1 for each network interface of a VMI, with its address.",
		"node", "namespace", "name", "vnic_name", "interface_name", "address", "type")
	overhead = metrics.Describe("vmi_launcher_memory_overhead_bytes", "The memory that a launcher Pod requests beside the guest's.", "namespace", "name")
	vmiVNIC  = metrics.Describe("vmi_vnic_info", "1 for each network interface in the spec of a VMI.", vnicLabels...)
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
		metrics.Text(vmi.Annotations[osAnnotation]), metrics.Text(vmi.Annotations[workloadAnnotation]), metrics.Text(vmi.Annotations[flavorAnnotation]),
		o.types.ofVMI(reference.Instancetypes, vmi), o.types.ofVMI(reference.Preferences, vmi),
		metrics.Text(guest.KernelRelease), metrics.Text(machine), metrics.Text(guest.Machine), metrics.Text(guest.Name), metrics.Text(guest.VersionID),
		strconv.FormatBool(evictable), strconv.FormatBool(isOutdated(vmi)), o.pods[placement{string(vmi.UID), node}])
	to <- metrics.Gauge(nonEvictable, metrics.Bool(!evictable), node, vmi.Namespace, vmi.Name)
	collectAddresses(vmi, to)
	collectVNICs(vmiVNIC, vmi.Namespace, vmi.Name, &vmi.Spec, to)
	if !vmi.IsFinal() {
		bytes := podspec.MemoryOverhead(vmi, o.config.Pods())
		to <- metrics.Gauge(overhead, float64(bytes.Value()), vmi.Namespace, vmi.Name)
	}
}

// isEvictable reports whether a drain of the VMI's node neither stops the VMI nor is blocked by it. A VMI that has to migrate is not
// evictable until its agent has reported that it can migrate.
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
