// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/clusterconfig"
	"github.com/vireo-project/vireo/internal/decide/instancetype"
	"github.com/vireo-project/vireo/internal/decide/resize"
	"github.com/vireo-project/vireo/internal/quantity"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// firmwareNamespace is the UUID namespace in which KubeVirt derives the firmware UUID of a VM from its name. With the
// same namespace, a guest from KubeVirt keeps the UUID to which its licenses are bound.
var firmwareNamespace = uuid.MustParse("6a1a24a1-4061-4607-8bf4-a3963d0c5895")

// setDefaults sets the defaults of a VMI. The order matters: the architecture determines the machine type and the
// buses, and volumes get disks before disks get buses.
func setDefaults(vmi *v1.VirtualMachineInstance, config clusterconfig.Config) {
	spec := &vmi.Spec
	defaultPlatform(spec, config)
	defaultCPU(spec, config)
	defaultMemory(spec)
	defaultGrowth(vmi, config)
	defaultRequests(&spec.Domain.Resources)
	defaultFirmware(vmi)
	defaultBootloader(spec)
	defaultFeatures(spec)
	defaultTimers(spec)
	defaultDisks(spec, config.HotplugVolumes)
	defaultImages(spec)
	defaultNetwork(spec, config)
	defaultDevices(spec)
	defaultOptions(vmi, config)
	defaultProbe(spec.ReadinessProbe)
	defaultProbe(spec.LivenessProbe)
	if spec.EvictionStrategy == nil {
		spec.EvictionStrategy = ptr.To(config.EvictionStrategy)
	}
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = ptr.To(v1.DefaultGracePeriodSeconds)
	}
}

// defaultOptions applies the cluster's options to a VMI that does not set them itself.
func defaultOptions(vmi *v1.VirtualMachineInstance, config clusterconfig.Config) {
	if devices := &vmi.Spec.Domain.Devices; config.DisableSerialConsoleLog && devices.LogSerialConsole == nil {
		devices.LogSerialConsole = ptr.To(false)
	}
	if cpu := vmi.Spec.Domain.CPU; config.AlignCPUs && cpu != nil && cpu.IsolateEmulatorThread {
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.EmulatorThreadCompleteToEvenParity, "")
	}
	if _, set := vmi.Annotations[v1.FreePageReportingDisabledAnnotation]; config.DisableFreePageReporting && !set {
		metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, v1.FreePageReportingDisabledAnnotation, "true")
	}
}

func defaultPlatform(spec *v1.VirtualMachineInstanceSpec, config clusterconfig.Config) {
	spec.Architecture = architecture(spec, config)
	if spec.Domain.Machine == nil {
		spec.Domain.Machine = &v1.Machine{}
	}
	if spec.Domain.Machine.Type == "" {
		spec.Domain.Machine.Type = config.MachineType(spec.Architecture)
	}
}

func defaultCPU(spec *v1.VirtualMachineInstanceSpec, config clusterconfig.Config) {
	if spec.Domain.CPU == nil {
		spec.Domain.CPU = &v1.CPU{}
	}
	cpu := spec.Domain.CPU
	if cpu.Model == "" {
		cpu.Model = cpuModel(spec.Architecture, config)
	}
	if cpu.Cores == 0 && cpu.Sockets == 0 && cpu.Threads == 0 {
		cpu.Sockets = instancetype.Sockets(spec.Domain.Resources)
	}
	cpu.Cores, cpu.Sockets, cpu.Threads = max(cpu.Cores, 1), max(cpu.Sockets, 1), max(cpu.Threads, 1)
}

func cpuModel(arch string, config clusterconfig.Config) string {
	switch {
	case config.CPUModel != "":
		return config.CPUModel
	case arch == clusterconfig.ArchARM64:
		// libvirt has no named CPU models for arm64, and so none that resembles the host's.
		return v1.CPUModeHostPassthrough
	default:
		return v1.DefaultCPUModel
	}
}

func defaultMemory(spec *v1.VirtualMachineInstanceSpec) {
	guest := quantity.GuestMemory(&spec.Domain)
	if guest == nil {
		return // checkMemoryGiven reports it.
	}
	if spec.Domain.Memory == nil {
		spec.Domain.Memory = &v1.Memory{}
	}
	spec.Domain.Memory.Guest = guest
}

// defaultRequests copies a limit without a request to the requests, as Kubernetes does for a Pod.
func defaultRequests(resources *v1.ResourceRequirements) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, request := resources.Limits[name], resources.Requests[name]
		if limit.IsZero() || !request.IsZero() {
			continue
		}
		if resources.Requests == nil {
			resources.Requests = corev1.ResourceList{}
		}
		resources.Requests[name] = limit.DeepCopy()
	}
}

func defaultFirmware(vmi *v1.VirtualMachineInstance) {
	if vmi.Spec.Domain.Firmware == nil {
		vmi.Spec.Domain.Firmware = &v1.Firmware{}
	}
	if vmi.Spec.Domain.Firmware.UUID == "" {
		vmi.Spec.Domain.Firmware.UUID = firmwareUUID(vmi)
	}
}

// defaultBootloader selects UEFI on arm64, which has no BIOS.
func defaultBootloader(spec *v1.VirtualMachineInstanceSpec) {
	if spec.Architecture == clusterconfig.ArchARM64 && spec.Domain.Firmware.Bootloader == nil {
		spec.Domain.Firmware.Bootloader = &v1.Bootloader{EFI: &v1.EFI{SecureBoot: ptr.To(false)}}
	}
}

// firmwareUUID returns a UUID that is the same at each start of a VM, or a random one for a VMI without a VM.
func firmwareUUID(vmi *v1.VirtualMachineInstance) types.UID {
	if owner := vmistatus.VMOf(vmi); owner != nil {
		return types.UID(uuid.NewSHA1(firmwareNamespace, []byte(owner.Name)).String())
	}
	return types.UID(uuid.NewString())
}

func defaultImages(spec *v1.VirtualMachineInstanceSpec) {
	for i := range spec.Volumes {
		if disk := spec.Volumes[i].ContainerDisk; disk != nil && disk.ImagePullPolicy == "" {
			disk.ImagePullPolicy = pullPolicy(disk.Image)
		}
	}
	boot := spec.Domain.Firmware.KernelBoot
	if boot != nil && boot.Container != nil && boot.Container.ImagePullPolicy == "" {
		boot.Container.ImagePullPolicy = pullPolicy(boot.Container.Image)
	}
}

// pullPolicy returns the default of Kubernetes: Always for the tag latest, which may move, and IfNotPresent for other
// images.
func pullPolicy(image string) corev1.PullPolicy {
	if strings.Contains(image, "@") {
		return corev1.PullIfNotPresent
	}
	tag := ""
	if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
		tag = image[colon+1:]
	}
	if tag == "" || tag == "latest" {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func defaultNetwork(spec *v1.VirtualMachineInstanceSpec, config clusterconfig.Config) {
	instancetype.AddDefaultInterface(spec)
	devices := &spec.Domain.Devices
	onPod := map[string]bool{}
	for i := range spec.Networks {
		onPod[spec.Networks[i].Name] = spec.Networks[i].Pod != nil
	}
	for i := range devices.Interfaces {
		iface := &devices.Interfaces[i]
		if iface.Binding != nil || iface.InterfaceBindingMethod != (v1.InterfaceBindingMethod{}) {
			continue
		}
		if onPod[iface.Name] && config.Network.DefaultInterface == clusterconfig.InterfaceMasquerade {
			iface.Masquerade = &v1.InterfaceMasquerade{}
		} else {
			iface.Bridge = &v1.InterfaceBridge{}
		}
	}
}

// defaultProbe sets the defaults that Kubernetes has for probes.
func defaultProbe(probe *v1.Probe) {
	if probe == nil {
		return
	}
	atLeast := func(field *int32, value int32) {
		if *field < 1 {
			*field = value
		}
	}
	atLeast(&probe.TimeoutSeconds, 1)
	atLeast(&probe.PeriodSeconds, 10)
	atLeast(&probe.SuccessThreshold, 1)
	atLeast(&probe.FailureThreshold, 3)
}

// maxDefaultVCPUs limits the default of cpu.maxSockets: with more vCPUs, a guest on q35 needs an IOMMU with extended
// interrupts. Source: libvirt src/qemu/qemu_validate.c, QEMU_MAX_VCPUS_WITHOUT_EIM. KubeVirt's limit is 512.
const maxDefaultVCPUs = 255

// maxDefaultGuest limits the default of memory.maxGuest to half of what a guest CPU with 40 bits of addresses can use,
// which is QEMU's default: the addresses above the memory are for PCI devices. KubeVirt has no limit.
const maxDefaultGuest = 512 << 30

// defaultGrowth sets how far the guest of a VM can grow while it runs. A VMI without a VM cannot change; for it, the
// larger tables of QEMU and the guest would be useless.
func defaultGrowth(vmi *v1.VirtualMachineInstance, config clusterconfig.Config) {
	if config.RolloutStrategy != v1.VMRolloutStrategyLiveUpdate || vmistatus.VMOf(vmi) == nil ||
		vmi.Spec.Architecture == clusterconfig.ArchARM64 {
		return
	}
	defaultMaxSockets(vmi.Spec.Domain.CPU, config.LiveUpdate)
	defaultMaxGuest(&vmi.Spec, config.LiveUpdate)
}

// defaultMaxSockets sets the sockets up to which some can be added. With the node's NUMA topology, the cells of all
// vCPUs are those of the CPUs that the Pod has at the start.
func defaultMaxSockets(cpu *v1.CPU, limits clusterconfig.LiveUpdate) {
	if cpu.MaxSockets != 0 || cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil {
		return
	}
	sockets := uint64(limits.MaxSockets)
	if sockets == 0 {
		sockets = uint64(cpu.Sockets) * uint64(limits.MaxRatio)
	}
	sockets = min(sockets, maxDefaultVCPUs/max(uint64(cpu.Cores)*uint64(cpu.Threads), 1))
	cpu.MaxSockets = max(uint32(sockets), cpu.Sockets)
}

// defaultMaxGuest sets the memory up to which some can be added. Like KubeVirt, it leaves it out if the memory cannot
// change.
func defaultMaxGuest(spec *v1.VirtualMachineInstanceSpec, limits clusterconfig.LiveUpdate) {
	memory := spec.Domain.Memory
	if memory == nil || memory.Guest == nil || memory.MaxGuest != nil {
		return
	}
	most := resource.NewQuantity(maxDefaultGuest, resource.BinarySI)
	switch guest := memory.Guest.Value(); {
	case limits.MaxGuest != nil:
		most = ptr.To(limits.MaxGuest.DeepCopy())
	case guest <= maxDefaultGuest/int64(max(limits.MaxRatio, 1)):
		most.Set(guest * int64(max(limits.MaxRatio, 1)))
	}
	if resize.CheckMemory(spec, spec.Architecture, *memory.Guest, *most) == nil {
		memory.MaxGuest = most
	}
}
