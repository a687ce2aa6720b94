// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/quantity"
)

// Resources of virt-broker's device plugins. Except for userfaultfd, the names are KubeVirt's.
const (
	deviceKVM         corev1.ResourceName = "devices.kubevirt.io/kvm"
	deviceTUN         corev1.ResourceName = "devices.kubevirt.io/tun"
	deviceVhostNet    corev1.ResourceName = "devices.kubevirt.io/vhost-net"
	deviceVhostVSOCK  corev1.ResourceName = "devices.kubevirt.io/vhost-vsock"
	deviceUserfaultfd corev1.ResourceName = "devices.kubevirt.io/userfaultfd"
)

// ephemeralStorage is requested for logs and for the files of libvirt. KubeVirt's value.
const ephemeralStorage = "50M"

// checkReserved refuses requests of a user for the device of migration targets. Only virt-controller may request it
// (policy kubevirt-launcher-devices in config/admission), and it must not do so for a user.
func checkReserved(vmi *v1.VirtualMachineInstance, cfg Config) error {
	const format = "resource %s is for Pods to which guests migrate, and none of a VM's own: remove it from %s"
	for where, list := range map[string]corev1.ResourceList{
		"requests": vmi.Spec.Domain.Resources.Requests, "limits": vmi.Spec.Domain.Resources.Limits,
	} {
		if _, wanted := list[deviceUserfaultfd]; wanted {
			return fmt.Errorf(format, deviceUserfaultfd, "spec.domain.resources."+where)
		}
	}
	for _, network := range Connected(vmi) {
		if cfg.NetworkResources[network.Name] == deviceUserfaultfd {
			return fmt.Errorf(format, deviceUserfaultfd, "the NetworkAttachmentDefinition of network "+network.Name)
		}
	}
	return nil
}

// milliPerCPU is the number of thousandths in one CPU.
const milliPerCPU = 1000

// Resources returns the requests and limits of the launcher's container: the VMI's, plus those for the guest, the
// overhead and the devices.
func Resources(vmi *v1.VirtualMachineInstance, cfg Config) corev1.ResourceRequirements {
	return resources(vmi.DeepCopy(), cfg)
}

func resources(vmi *v1.VirtualMachineInstance, cfg Config) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	maps.Copy(out.Requests, vmi.Spec.Domain.Resources.Requests)
	maps.Copy(out.Limits, vmi.Spec.Domain.Resources.Limits)
	setCPU(&out, vmi, cfg)
	setMemory(&out, vmi, cfg)
	setDemandedLimits(&out, vmi, cfg)
	setStorage(&out)
	for _, device := range devices(vmi, cfg) {
		addDevice(&out, device)
	}
	requestNetworkResources(&out, vmi, cfg)
	if len(out.Limits) == 0 {
		out.Limits = nil
	}
	return out
}

// addDevice requests a device. For extended resources Kubernetes requires that request and limit are equal.
func addDevice(out *corev1.ResourceRequirements, device corev1.ResourceName) {
	out.Requests[device] = resource.MustParse("1")
	if out.Limits == nil {
		out.Limits = corev1.ResourceList{}
	}
	out.Limits[device] = resource.MustParse("1")
}

// VCPUs returns the number of vCPUs of the topology, or else of the resources.
func VCPUs(vmi *v1.VirtualMachineInstance) int64 {
	cpu := vmi.Spec.Domain.CPU
	if cpu != nil && (cpu.Sockets > 0 || cpu.Cores > 0 || cpu.Threads > 0) {
		return times(times(int64(max(cpu.Sockets, 1)), int64(max(cpu.Cores, 1))), int64(max(cpu.Threads, 1)))
	}
	for _, list := range []corev1.ResourceList{vmi.Spec.Domain.Resources.Limits, vmi.Spec.Domain.Resources.Requests} {
		if quantity, ok := list[corev1.ResourceCPU]; ok && quantity.Sign() > 0 {
			return valueOf(quantity)
		}
	}
	return 1
}

// busyThreads returns the number of vCPUs and of I/O threads in the supplemental pool.
func busyThreads(vmi *v1.VirtualMachineInstance) int64 {
	threads := VCPUs(vmi)
	if pool := vmi.Spec.Domain.IOThreads; pool != nil {
		threads = plus(threads, int64(ptr.Deref(pool.SupplementalPoolThreadCount, 0)))
	}
	return threads
}

// dedicatedCPUs returns the number of exclusive CPUs to request: one for each busy thread, and one for QEMU's main
// thread if it is isolated. The annotation EmulatorThreadCompleteToEvenParity makes the number even, for nodes that
// allocate whole cores only.
func dedicatedCPUs(vmi *v1.VirtualMachineInstance) int64 {
	cpus := busyThreads(vmi)
	if !vmi.Spec.Domain.CPU.IsolateEmulatorThread {
		return cpus
	}
	if _, even := vmi.Annotations[v1.EmulatorThreadCompleteToEvenParity]; even && cpus%2 == 0 {
		return plus(cpus, 2)
	}
	return plus(cpus, 1)
}

func setCPU(out *corev1.ResourceRequirements, vmi *v1.VirtualMachineInstance, cfg Config) {
	if vmi.IsCPUDedicated() {
		whole := *resource.NewQuantity(dedicatedCPUs(vmi), resource.DecimalSI)
		out.Requests[corev1.ResourceCPU], out.Limits[corev1.ResourceCPU] = whole, whole
		return
	}
	if _, given := out.Requests[corev1.ResourceCPU]; given {
		return
	}
	// As in Kubernetes, the default of a request is the limit. Admission sets it; this is for VMIs that did not pass
	// admission.
	if limit, limited := out.Limits[corev1.ResourceCPU]; limited && limit.Sign() > 0 {
		out.Requests[corev1.ResourceCPU] = limit.DeepCopy()
		return
	}
	request := *resource.NewMilliQuantity(
		max(times(busyThreads(vmi), milliPerCPU)/int64(max(cfg.CPUAllocationRatio, 1)), 1),
		resource.DecimalSI)
	if cfg.CPURequest != nil {
		request = cfg.CPURequest.DeepCopy()
	}
	out.Requests[corev1.ResourceCPU] = request
}

// defaultMemoryLimitRatio and the rules of setDemandedLimits are KubeVirt's. Source: kubevirt/kubevirt
// pkg/virt-controller/services, WithoutDedicatedCPU, WithAutoMemoryLimits and DefaultMemoryLimitOverheadRatio.
const defaultMemoryLimitRatio = 2.0

// setDemandedLimits sets the limits that the Pod must have and the VMI lacks: a CPU for each busy thread, and a
// multiple of the requested memory, but at least the request plus hardLimitMargin.
func setDemandedLimits(out *corev1.ResourceRequirements, vmi *v1.VirtualMachineInstance, cfg Config) {
	if _, limited := out.Limits[corev1.ResourceCPU]; !limited && cfg.LimitCPU {
		limit := *resource.NewQuantity(busyThreads(vmi), resource.DecimalSI)
		if request := out.Requests[corev1.ResourceCPU]; request.Cmp(limit) > 0 {
			limit = request.DeepCopy()
		}
		out.Limits[corev1.ResourceCPU] = limit
	}
	if _, limited := out.Limits[corev1.ResourceMemory]; !limited && cfg.LimitMemory {
		ratio := cfg.MemoryLimitRatio
		if ratio < 1 {
			ratio = defaultMemoryLimitRatio
		}
		request := out.Requests[corev1.ResourceMemory]
		bytes := valueOf(request)
		limit := max(whole(float64(bytes)*ratio), plus(bytes, hardLimitMargin))
		out.Limits[corev1.ResourceMemory] = *resource.NewQuantity(limit, request.Format)
	}
}

// GuestMemory returns the guest's memory. Admission sets memory.guest; the rest is for VMIs that did not pass
// admission.
func GuestMemory(vmi *v1.VirtualMachineInstance) resource.Quantity {
	if memory := quantity.GuestMemory(&vmi.Spec.Domain); memory != nil {
		return memory.DeepCopy()
	}
	return resource.Quantity{}
}

func hugepages(vmi *v1.VirtualMachineInstance) *v1.Hugepages {
	if memory := vmi.Spec.Domain.Memory; memory != nil {
		return memory.Hugepages
	}
	return nil
}

func setMemory(out *corev1.ResourceRequirements, vmi *v1.VirtualMachineInstance, cfg Config) {
	overhead := MemoryOverhead(vmi, cfg)
	guest := GuestMemory(vmi)
	request, given := out.Requests[corev1.ResourceMemory]
	if !given {
		request = requestFor(vmi, guest, cfg)
	}
	if pages := hugepages(vmi); pages != nil {
		// Huge pages, which contain the guest's memory, are a resource of their own. The rest needs ordinary memory.
		name := corev1.ResourceName(corev1.ResourceHugePagesPrefix + pages.PageSize)
		out.Requests[name], out.Limits[name] = guest, guest
		request = *resource.NewQuantity(max(valueOf(request)-valueOf(guest), 0), resource.BinarySI)
	}
	if !vmi.Spec.Domain.Resources.OvercommitGuestOverhead {
		request.Add(overhead)
	}
	out.Requests[corev1.ResourceMemory] = request
	if limit, limited := out.Limits[corev1.ResourceMemory]; limited {
		if hugepages(vmi) != nil {
			limit = *resource.NewQuantity(max(valueOf(limit)-valueOf(guest), 0), resource.BinarySI)
		}
		limit.Add(overhead)
		out.Limits[corev1.ResourceMemory] = limit
	}
	if vmi.IsCPUDedicated() {
		// Only a Guaranteed Pod gets exclusive CPUs.
		out.Limits[corev1.ResourceMemory] = request
	}
}

// requestFor returns the memory request of a VMI without one: as in Kubernetes its limit, or else the guest's memory.
// Huge pages, and the memory of guests with dedicated CPUs, are not overcommitted.
func requestFor(vmi *v1.VirtualMachineInstance, guest resource.Quantity, cfg Config) resource.Quantity {
	if limit, limited := vmi.Spec.Domain.Resources.Limits[corev1.ResourceMemory]; limited && limit.Sign() > 0 {
		return limit.DeepCopy()
	}
	if vmi.IsCPUDedicated() || hugepages(vmi) != nil {
		return guest
	}
	return *resource.NewQuantity(guest.Value()*100/overcommit(cfg), resource.BinarySI)
}

func overcommit(cfg Config) int64 {
	if cfg.MemoryOvercommit < 1 {
		return 100
	}
	return int64(cfg.MemoryOvercommit)
}

func setStorage(out *corev1.ResourceRequirements) {
	own := resource.MustParse(ephemeralStorage)
	request := out.Requests[corev1.ResourceEphemeralStorage].DeepCopy()
	request.Add(own)
	out.Requests[corev1.ResourceEphemeralStorage] = request
	if limit, limited := out.Limits[corev1.ResourceEphemeralStorage]; limited {
		limit.Add(own)
		out.Limits[corev1.ResourceEphemeralStorage] = limit
	}
}

func devices(vmi *v1.VirtualMachineInstance, cfg Config) []corev1.ResourceName {
	var out []corev1.ResourceName
	if !cfg.UseEmulation {
		out = append(out, deviceKVM)
	}
	if vsock := vmi.Spec.Domain.Devices.AutoattachVSOCK; vsock != nil && *vsock {
		out = append(out, deviceVhostVSOCK)
	}
	interfaces := vmi.Spec.Domain.Devices.Interfaces
	if len(interfaces) > 0 {
		out = append(out, deviceTUN)
	}
	for _, iface := range interfaces {
		if !cfg.UseEmulation && (iface.Model == "" || iface.Model == v1.VirtIO) {
			return append(out, deviceVhostNet)
		}
	}
	return out
}

// resourceClaims returns the VMI's resource claims for the Pod.
func resourceClaims(vmi *v1.VirtualMachineInstance) []corev1.PodResourceClaim {
	if len(vmi.Spec.ResourceClaims) == 0 {
		return nil
	}
	out := make([]corev1.PodResourceClaim, 0, len(vmi.Spec.ResourceClaims))
	for _, claim := range vmi.Spec.ResourceClaims {
		out = append(out, corev1.PodResourceClaim{
			Name: claim.Name, ResourceClaimName: claim.ResourceClaimName,
			ResourceClaimTemplateName: claim.ResourceClaimTemplateName,
		})
	}
	return out
}
