// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package resize decides how the CPUs and the memory of a running guest follow its VMI. A guest grows after its Pod,
// and shrinks before it. The package is pure: its results depend on its arguments only.
package resize

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
)

// Annotations of a launcher Pod with the guest that its resources are for. virt-controller writes them when it creates
// the Pod, and after each change of its resources.
const (
	// SocketsAnnotation has the number of the guest's CPU sockets.
	SocketsAnnotation = "kubevirt.io/guest-sockets"
	// MemoryAnnotation has the size of the guest's memory in bytes.
	MemoryAnnotation = "kubevirt.io/guest-memory-bytes"
)

// Size is what a running guest has, or is to have, of that which can change. A field is 0 if it cannot change.
type Size struct {
	// Sockets is the number of CPU sockets.
	Sockets uint32
	// Memory is the size of the memory in bytes.
	Memory int64
}

// Sockets returns the number of CPU sockets of a spec. Without a topology, each CPU of the resources is a socket.
func Sockets(spec *v1.DomainSpec) uint32 {
	cpu := spec.CPU
	if cpu == nil || cpu.Sockets == 0 && cpu.Cores == 0 && cpu.Threads == 0 {
		return instancetype.Sockets(spec.Resources)
	}
	return max(cpu.Sockets, 1)
}

// CanResizeCPUs reports whether sockets can be added to the guest of a VMI. This depends on how the guest was started.
func CanResizeCPUs(vmi *v1.VirtualMachineInstance) bool {
	return vmi.Spec.Domain.CPU != nil && vmi.Spec.Domain.CPU.MaxSockets > 0
}

// MemoryBlock is the least step in bytes by which the memory of a guest can change.
const MemoryBlock = 2 << 20

// CanResizeMemory reports whether the memory of the guest of a VMI can change. This depends on how the guest was
// started.
func CanResizeMemory(vmi *v1.VirtualMachineInstance) bool {
	memory := vmi.Spec.Domain.Memory
	return memory != nil && memory.MaxGuest != nil && memory.Guest != nil && memory.Guest.Value()%MemoryBlock == 0
}

// Desired returns the size in the spec of a VMI.
func Desired(vmi *v1.VirtualMachineInstance) Size {
	var size Size
	if CanResizeCPUs(vmi) {
		size.Sockets = Sockets(&vmi.Spec.Domain)
	}
	if CanResizeMemory(vmi) {
		size.Memory = vmi.Spec.Domain.Memory.Guest.Value()
	}
	return size
}

// Current returns the size that the agent reported last, and whether it has reported one.
func Current(vmi *v1.VirtualMachineInstance) (Size, bool) {
	var size Size
	if CanResizeCPUs(vmi) {
		topology := vmi.Status.CurrentCPUTopology
		if topology == nil || topology.Sockets == 0 {
			return Size{}, false
		}
		size.Sockets = topology.Sockets
	}
	if CanResizeMemory(vmi) {
		memory := vmi.Status.Memory
		if memory == nil || memory.GuestCurrent == nil {
			return Size{}, false
		}
		size.Memory = memory.GuestCurrent.Value()
	}
	return size, true
}

// Granted returns what the guest may have according to the agent's last report, beside what it has: a guest takes and
// returns memory as it can. It is the size of Current if nothing else was reported.
func Granted(vmi *v1.VirtualMachineInstance, current Size) Size {
	if memory := vmi.Status.Memory; CanResizeMemory(vmi) && memory != nil && memory.GuestRequested != nil {
		current.Memory = max(current.Memory, memory.GuestRequested.Value())
	}
	return current
}

// With returns a copy of a VMI whose spec has a size. Requests and limits of memory that the spec has are for the
// memory in the spec, and follow it: a guest that has yet to return memory needs more than they say.
func With(vmi *v1.VirtualMachineInstance, size Size) *v1.VirtualMachineInstance {
	vmi = vmi.DeepCopy()
	if CanResizeCPUs(vmi) {
		vmi.Spec.Domain.CPU.Sockets = size.Sockets
	}
	if CanResizeMemory(vmi) {
		guest, resources := vmi.Spec.Domain.Memory.Guest, vmi.Spec.Domain.Resources
		added := resource.NewQuantity(size.Memory-guest.Value(), resource.BinarySI)
		for _, list := range []corev1.ResourceList{resources.Requests, resources.Limits} {
			if amount := list[corev1.ResourceMemory]; !amount.IsZero() {
				amount.Add(*added)
				list[corev1.ResourceMemory] = amount
			}
		}
		guest.Set(size.Memory)
	}
	return vmi
}

// Annotate sets or removes the annotations of a launcher Pod.
func Annotate(annotations map[string]string, size Size) {
	delete(annotations, SocketsAnnotation)
	delete(annotations, MemoryAnnotation)
	if size.Sockets > 0 {
		annotations[SocketsAnnotation] = strconv.FormatUint(uint64(size.Sockets), 10)
	}
	if size.Memory > 0 {
		annotations[MemoryAnnotation] = strconv.FormatInt(size.Memory, 10)
	}
}

// OfPod returns the guest that a launcher Pod's resources are for. A Pod of an earlier version has no annotations: its
// resources are for the guest that runs in it.
func OfPod(pod *corev1.Pod, current Size) Size {
	size := current
	if n, err := strconv.ParseUint(pod.Annotations[SocketsAnnotation], 10, 32); err == nil && n > 0 &&
		current.Sockets > 0 {
		size.Sockets = uint32(n)
	}
	if n, err := strconv.ParseInt(pod.Annotations[MemoryAnnotation], 10, 64); err == nil && n > 0 && current.Memory > 0 {
		size.Memory = n
	}
	return size
}

// ForPod returns the guest that a Pod's resources have to be for: the desired one, but not less than what the guest was
// granted. That is never more than the Pod is for: what the agent reports beyond that does not count.
func ForPod(desired, granted, pod Size) Size {
	return Size{
		Sockets: max(desired.Sockets, min(granted.Sockets, pod.Sockets)),
		Memory:  max(desired.Memory, min(granted.Memory, pod.Memory)),
	}
}

// ForTarget returns the guest that the target Pod of a migration has to be for. The guest is transferred with what it
// has, also with memory that it is to return. own is the Pod that it is in; one of an earlier version has no
// annotations, and its guest was never resized.
func ForTarget(vmi *v1.VirtualMachineInstance, own *corev1.Pod) Size {
	desired := Desired(vmi)
	return ForPod(desired, grantedIn(vmi, own, desired), OfPod(own, desired))
}

// Outgrown reports whether the guest was granted more since the target Pod of its migration was created than that Pod
// is for.
func Outgrown(vmi *v1.VirtualMachineInstance, own, target *corev1.Pod) bool {
	granted := grantedIn(vmi, own, Desired(vmi))
	pod := OfPod(target, granted)
	return granted.Sockets > pod.Sockets || granted.Memory > pod.Memory
}

// grantedIn returns what the guest may have according to the agent's last report, and not more than its Pod is for.
// Without a report and without annotations it is the desired size.
func grantedIn(vmi *v1.VirtualMachineInstance, own *corev1.Pod, desired Size) Size {
	pod := OfPod(own, desired)
	current, known := Current(vmi)
	if !known {
		return pod
	}
	granted := Granted(vmi, current)
	return Size{Sockets: min(granted.Sockets, pod.Sockets), Memory: min(granted.Memory, pod.Memory)}
}

// ForGuest returns what the guest is granted next. It shrinks at once, and grows once its Pod has the resources. CPUs
// are never removed: guests seldom support it, and KubeVirt requires a restart.
func ForGuest(desired, granted Size, pod *corev1.Pod) Size {
	next, room := granted, Size{}
	if Applied(pod) {
		// Without the annotations, the Pod is not for more than the guest has.
		room = OfPod(pod, granted)
	}
	if desired.Sockets > granted.Sockets && desired.Sockets <= room.Sockets {
		next.Sockets = desired.Sockets
	}
	if granted.Memory > 0 && (desired.Memory < granted.Memory || desired.Memory <= room.Memory) {
		next.Memory = desired.Memory
	}
	return next
}

// Pending returns which changes are not done: the guest or its Pod do not have the desired size.
func Pending(desired, current, granted, pod Size) (cpus, memory bool) {
	target := ForPod(desired, granted, pod)
	return desired.Sockets > current.Sockets || pod.Sockets != target.Sockets,
		desired.Memory != current.Memory || pod.Memory != target.Memory
}

// minGuest is the least memory of a guest whose memory can change. KubeVirt's.
const minGuest = 1 << 30

// MemoryProblem is why the memory of a guest cannot change.
type MemoryProblem struct {
	// Missing reports whether memory.guest is missing, and OfLimit whether memory.maxGuest is wrong, and not memory.guest.
	Missing, OfLimit bool
	// Message is KubeVirt's.
	Message string
}

// CheckMemory returns why the memory of a guest with a spec cannot change, or nil. guest is its memory, most the memory
// that it can grow to. Source: kubevirt/kubevirt pkg/liveupdate/memory.
func CheckMemory(spec *v1.VirtualMachineInstanceSpec, arch string, guest, most resource.Quantity) *MemoryProblem {
	cpu, block, multiple := spec.Domain.CPU, int64(MemoryBlock), "2Mi"
	if memory := spec.Domain.Memory; memory != nil && memory.Hugepages != nil && memory.Hugepages.PageSize == "1Gi" {
		block, multiple = 1<<30, "1Gi"
	}
	switch {
	case cpu != nil && cpu.Realtime != nil:
		return &MemoryProblem{Message: "Memory hotplug is not compatible with realtime VMs"}
	case cpu != nil && cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil:
		return &MemoryProblem{Message: "Memory hotplug is not compatible with guest mapping passthrough"}
	case spec.Domain.LaunchSecurity != nil:
		return &MemoryProblem{Message: "Memory hotplug is not compatible with encrypted VMs"}
	case guest.IsZero():
		return &MemoryProblem{Missing: true, Message: "Guest memory must be configured when memory hotplug is enabled"}
	case guest.Cmp(most) > 0:
		return &MemoryProblem{Message: "Guest memory is greater than the configured maxGuest memory"}
	case guest.Value()%block != 0:
		return &MemoryProblem{Message: "Guest memory must be " + multiple + " aligned"}
	case most.Value()%block != 0:
		return &MemoryProblem{OfLimit: true, Message: "MaxGuest must be " + multiple + " aligned"}
	case arch != "amd64" && arch != "arm64":
		return &MemoryProblem{Message: "Memory hotplug is only available for x86_64 and arm64 VMs"}
	case guest.Value() < minGuest:
		return &MemoryProblem{Message: "Memory hotplug is only available for VMs with at least 1Gi of guest memory"}
	default:
		return nil
	}
}
