// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package instancetype applies instance types and preferences to the template of a VM, and validates them. It is pure:
// its results depend only on its arguments, which it does not change.
package instancetype

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	cdiv1beta1 "github.com/vireo-project/vireo/api/cdi/v1beta1"
	"github.com/vireo-project/vireo/api/instancetype/v1beta1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// instancetypeRows are the fields of an instance type. A field that is not set conflicts with nothing and changes
// nothing. All conflicts of memory are reported; KubeVirt reports only the first one.
var instancetypeRows = slices.Concat(placementRows, cpuRows, memoryRows, otherRows)

var placementRows = []row{
	{
		path: "nodeSelector",
		conflicts: func(e *expansion) Conflicts {
			return conflict(len(e.instancetype.NodeSelector) > 0 && e.spec.NodeSelector != nil, "nodeSelector")
		},
		apply: func(e *expansion) {
			if len(e.instancetype.NodeSelector) > 0 {
				e.spec.NodeSelector = e.instancetype.NodeSelector
			}
		},
	},
	{
		path: "schedulerName",
		conflicts: func(e *expansion) Conflicts {
			return conflict(e.instancetype.SchedulerName != "" && e.spec.SchedulerName != "", "schedulerName")
		},
		apply: func(e *expansion) { fillEmpty(&e.spec.SchedulerName, e.instancetype.SchedulerName) },
	},
}

var cpuRows = []row{
	{
		path: "cpu.guest",
		conflicts: func(e *expansion) Conflicts {
			cpu, resources := e.cpu(), e.spec.Domain.Resources
			return slices.Concat(
				conflict(has(resources.Requests, corev1.ResourceCPU), "domain.resources.requests.cpu"),
				conflict(has(resources.Limits, corev1.ResourceCPU), "domain.resources.limits.cpu"),
				conflict(cpu.Sockets > 0, "domain.cpu.sockets"),
				conflict(cpu.Cores > 0, "domain.cpu.cores"),
				conflict(cpu.Threads > 0, "domain.cpu.threads"),
			)
		},
		apply: func(e *expansion) {
			layout, _ := e.preference.arrange(e.instancetype.CPU.Guest)
			cpu := need(&e.spec.Domain.CPU)
			cpu.Sockets, cpu.Cores, cpu.Threads = layout.sockets, layout.cores, layout.threads
		},
	},
	cpuRow("model",
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) (bool, bool) { return it.Model != nil, cpu.Model != "" },
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) { cpu.Model = *it.Model }),
	cpuRow("dedicatedCPUPlacement",
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) (bool, bool) {
			return it.DedicatedCPUPlacement != nil, cpu.DedicatedCPUPlacement
		},
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) { cpu.DedicatedCPUPlacement = *it.DedicatedCPUPlacement }),
	cpuRow("isolateEmulatorThread",
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) (bool, bool) {
			return it.IsolateEmulatorThread != nil, cpu.IsolateEmulatorThread
		},
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) { cpu.IsolateEmulatorThread = *it.IsolateEmulatorThread }),
	cpuRow("numa",
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) (bool, bool) { return it.NUMA != nil, cpu.NUMA != nil },
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) { cpu.NUMA = it.NUMA }),
	cpuRow("realtime",
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) (bool, bool) {
			return it.Realtime != nil, cpu.Realtime != nil
		},
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) { cpu.Realtime = it.Realtime }),
	// As in KubeVirt, it replaces the VM's value and is not a conflict, because such VMs exist.
	cpuRow("maxSockets",
		func(it *v1beta1.CPUInstancetype, _ *v1.CPU) (bool, bool) { return it.MaxSockets != nil, false },
		func(it *v1beta1.CPUInstancetype, cpu *v1.CPU) { cpu.MaxSockets = *it.MaxSockets }),
}

// cpuRow returns the row of a field of an instance type's CPU. given reports whether the instance type and the VM set
// it. As in KubeVirt, the path of the conflict is that of the instance type's field, even for dedicatedCpuPlacement.
func cpuRow(
	name string, given func(*v1beta1.CPUInstancetype, *v1.CPU) (instancetype, vm bool),
	set func(*v1beta1.CPUInstancetype, *v1.CPU),
) row {
	return row{
		path: "cpu." + name,
		conflicts: func(e *expansion) Conflicts {
			instancetype, vm := given(&e.instancetype.CPU, e.cpu())
			return conflict(instancetype && vm, "domain.cpu."+name)
		},
		apply: func(e *expansion) {
			if instancetype, _ := given(&e.instancetype.CPU, e.cpu()); instancetype {
				set(&e.instancetype.CPU, need(&e.spec.Domain.CPU))
			}
		},
	}
}

var memoryRows = []row{
	{
		path:      "memory.guest",
		conflicts: func(e *expansion) Conflicts { return conflict(e.memory().Guest != nil, "domain.memory.guest") },
		apply:     func(e *expansion) { need(&e.spec.Domain.Memory).Guest = &e.instancetype.Memory.Guest },
	},
	{
		path: "memory.hugepages",
		conflicts: func(e *expansion) Conflicts {
			return conflict(e.instancetype.Memory.Hugepages != nil && e.memory().Hugepages != nil, "domain.memory.hugepages")
		},
		apply: func(e *expansion) { fill(&need(&e.spec.Domain.Memory).Hugepages, e.instancetype.Memory.Hugepages) },
	},
	{
		path: "memory.maxGuest",
		conflicts: func(e *expansion) Conflicts {
			return conflict(e.instancetype.Memory.MaxGuest != nil && e.memory().MaxGuest != nil, "domain.memory.maxGuest")
		},
		apply: func(e *expansion) { fill(&need(&e.spec.Domain.Memory).MaxGuest, e.instancetype.Memory.MaxGuest) },
	},
	{
		// Memory requests and limits of the VM conflict with an instance type even if it does not overcommit.
		path: "memory.overcommitPercent",
		conflicts: func(e *expansion) Conflicts {
			return slices.Concat(
				conflict(has(e.spec.Domain.Resources.Requests, corev1.ResourceMemory), "domain.resources.requests.memory"),
				conflict(has(e.spec.Domain.Resources.Limits, corev1.ResourceMemory), "domain.resources.limits.memory"),
			)
		},
		apply: func(e *expansion) {
			percent := e.instancetype.Memory.OvercommitPercent
			if percent <= 0 || percent > 100 {
				return
			}
			requests := &e.spec.Domain.Resources.Requests
			if *requests == nil {
				*requests = corev1.ResourceList{}
			}
			(*requests)[corev1.ResourceMemory] = overcommitted(e.instancetype.Memory.Guest, percent)
		},
	},
}

// overcommitted returns the part of a guest's memory that is requested. It is computed with the same precision as in
// KubeVirt, so that a VM from KubeVirt has the same requests.
func overcommitted(guest resource.Quantity, percent int) resource.Quantity {
	requested := float32(guest.Value()) * (1 - float32(percent)/100)
	return *resource.NewQuantity(int64(requested), guest.Format)
}

var otherRows = []row{
	{
		path: "ioThreads.supplementalPoolThreadCount",
		conflicts: func(e *expansion) Conflicts {
			own := e.spec.Domain.IOThreads
			return conflict(e.poolThreads() != nil && own != nil && own.SupplementalPoolThreadCount != nil,
				"domain.ioThreads.supplementalPoolThreadCount")
		},
		apply: func(e *expansion) {
			if count := e.poolThreads(); count != nil {
				need(&e.spec.Domain.IOThreads).SupplementalPoolThreadCount = count
			}
		},
	},
	{
		path: "ioThreadsPolicy",
		conflicts: func(e *expansion) Conflicts {
			return conflict(e.instancetype.IOThreadsPolicy != nil && e.spec.Domain.IOThreadsPolicy != nil,
				"domain.ioThreadsPolicy")
		},
		apply: func(e *expansion) { fill(&e.spec.Domain.IOThreadsPolicy, e.instancetype.IOThreadsPolicy) },
	},
	{
		path: "launchSecurity",
		conflicts: func(e *expansion) Conflicts {
			return conflict(e.instancetype.LaunchSecurity != nil && e.spec.Domain.LaunchSecurity != nil, "domain.launchSecurity")
		},
		apply: func(e *expansion) { fill(&e.spec.Domain.LaunchSecurity, e.instancetype.LaunchSecurity) },
	},
	{
		path: "gpus",
		conflicts: func(e *expansion) Conflicts {
			return conflict(len(e.instancetype.GPUs) > 0 && len(e.spec.Domain.Devices.GPUs) > 0, "domain.devices.gpus")
		},
		apply: func(e *expansion) {
			if len(e.instancetype.GPUs) > 0 {
				e.spec.Domain.Devices.GPUs = e.instancetype.GPUs
			}
		},
	},
	{
		path: "hostDevices",
		conflicts: func(e *expansion) Conflicts {
			return conflict(len(e.instancetype.HostDevices) > 0 && len(e.spec.Domain.Devices.HostDevices) > 0,
				"domain.devices.hostDevices")
		},
		apply: func(e *expansion) {
			if len(e.instancetype.HostDevices) > 0 {
				e.spec.Domain.Devices.HostDevices = e.instancetype.HostDevices
			}
		},
	},
	{
		path: "annotations",
		conflicts: func(e *expansion) Conflicts {
			var conflicts Conflicts
			for _, key := range slices.Sorted(maps.Keys(e.instancetype.Annotations)) {
				if value, set := e.template.ObjectMeta.Annotations[key]; set && value != e.instancetype.Annotations[key] {
					conflicts = append(conflicts, Conflict{Path: "annotations." + key, Annotation: true})
				}
			}
			return conflicts
		},
		apply: func(e *expansion) { e.annotate(e.instancetype.Annotations) },
	},
}

// annotate adds annotations. It does not change existing ones.
func (e *expansion) annotate(annotations map[string]string) {
	for key, value := range annotations {
		if _, set := e.template.ObjectMeta.Annotations[key]; !set {
			metav1.SetMetaDataAnnotation(&e.template.ObjectMeta, key, value)
		}
	}
}

// cpu returns the CPU of the template, which must not be changed.
func (e *expansion) cpu() *v1.CPU { return ptr.To(ptr.Deref(e.spec.Domain.CPU, v1.CPU{})) }

// memory returns the memory of the template, which must not be changed.
func (e *expansion) memory() *v1.Memory { return ptr.To(ptr.Deref(e.spec.Domain.Memory, v1.Memory{})) }

// poolThreads returns ioThreads.supplementalPoolThreadCount of the instance type.
func (e *expansion) poolThreads() *uint32 {
	return ptr.Deref(e.instancetype.IOThreads, v1.DiskIOThreads{}).SupplementalPoolThreadCount
}

func has(list corev1.ResourceList, name corev1.ResourceName) bool {
	_, set := list[name]
	return set
}

// Names of the devices that are added to a VMI without any. KubeVirt's.
const (
	defaultInterfaceName = "default"
	defaultInputName     = "default-0"
)

// AddImplicitDisks adds a disk for each volume that no device uses.
func AddImplicitDisks(spec *v1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	used := map[string]bool{}
	for i := range devices.Disks {
		used[devices.Disks[i].Name] = true
	}
	for i := range devices.Filesystems {
		used[devices.Filesystems[i].Name] = true
	}
	for i := range spec.Volumes {
		if volume := &spec.Volumes[i]; volume.MemoryDump == nil && !used[volume.Name] {
			devices.Disks = append(devices.Disks, v1.Disk{Name: volume.Name})
			used[volume.Name] = true
		}
	}
}

// DiskOf returns the disk of a volume, or the one that AddImplicitDisks would add for it. It returns nil if the volume
// is a file system or a memory dump, or does not exist.
func DiskOf(spec *v1.VirtualMachineInstanceSpec, volume string) *v1.Disk {
	devices := &spec.Domain.Devices
	named := func(v v1.Volume) bool { return v.Name == volume && v.MemoryDump == nil }
	if !slices.ContainsFunc(spec.Volumes, named) ||
		slices.ContainsFunc(devices.Filesystems, func(f v1.Filesystem) bool { return f.Name == volume }) {
		return nil
	}
	if i := slices.IndexFunc(devices.Disks, func(d v1.Disk) bool { return d.Name == volume }); i >= 0 {
		return &devices.Disks[i]
	}
	return &v1.Disk{Name: volume}
}

// AddDefaultInterface adds an interface on the Pod's network to a spec without interfaces and networks, unless
// autoattachPodInterface is false.
func AddDefaultInterface(spec *v1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	if attach := devices.AutoattachPodInterface; attach != nil && !*attach ||
		len(devices.Interfaces)+len(spec.Networks) > 0 {
		return
	}
	devices.Interfaces = []v1.Interface{{Name: defaultInterfaceName}}
	spec.Networks = []v1.Network{{Name: defaultInterfaceName, NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}}
}

// addDefaultInput adds an input device to a spec without one if autoattachInputDevice is true. The defaults of a VMI do
// not add one, because internal/domain adds the device to the domain.
func addDefaultInput(spec *v1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	if attach := devices.AutoattachInputDevice; attach != nil && *attach && len(devices.Inputs) == 0 {
		devices.Inputs = []v1.Input{{Name: defaultInputName}}
	}
}

// StorageClass returns the storage class that a preference, which may be nil, sets for DataVolumes of a VM, or "".
func StorageClass(preference *v1beta1.VirtualMachinePreferenceSpec) string {
	if preference == nil || preference.Volumes == nil {
		return ""
	}
	return preference.Volumes.PreferredStorageClassName
}

// WithStorageClass returns a copy of the spec of a VM's DataVolume with the storage class of a preference, which may be
// nil, if the spec names none.
func WithStorageClass(
	spec *cdiv1beta1.DataVolumeSpec, preference *v1beta1.VirtualMachinePreferenceSpec,
) *cdiv1beta1.DataVolumeSpec {
	spec = spec.DeepCopy()
	class := StorageClass(preference)
	if class == "" {
		return spec
	}
	if spec.PVC != nil {
		fill(&spec.PVC.StorageClassName, ptr.To(class))
	}
	if spec.Storage != nil {
		fill(&spec.Storage.StorageClassName, ptr.To(class))
	}
	return spec
}
