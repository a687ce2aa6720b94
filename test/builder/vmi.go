// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package builder builds objects for tests: builder.MakeVMI("vm").ContainerDisk("root", "image").Obj().
package builder

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Namespace is the default namespace of the objects.
const Namespace = "default"

// VMI builds a VirtualMachineInstance.
type VMI struct{ vmi v1.VirtualMachineInstance }

// MakeVMI returns a builder that starts with the defaults of admission: one vCPU, 1Gi, amd64, q35, host-model, no
// network.
func MakeVMI(name string) *VMI {
	b := &VMI{}
	b.vmi.Name, b.vmi.Namespace = name, Namespace
	b.vmi.Spec.Architecture = "amd64"
	b.vmi.Spec.Domain.Machine = &v1.Machine{Type: "q35"}
	b.vmi.Spec.Domain.CPU = &v1.CPU{Cores: 1, Sockets: 1, Threads: 1, Model: v1.CPUModeHostModel}
	return b.Guest("1Gi")
}

// Obj returns a copy of the object.
func (b *VMI) Obj() *v1.VirtualMachineInstance { return b.vmi.DeepCopy() }

// Namespace sets the namespace.
func (b *VMI) Namespace(ns string) *VMI { b.vmi.Namespace = ns; return b }

// UID sets the UID, for tests without an API server.
func (b *VMI) UID(uid string) *VMI { b.vmi.UID = types.UID(uid); return b }

// Label adds a label.
func (b *VMI) Label(key, value string) *VMI {
	metav1.SetMetaDataLabel(&b.vmi.ObjectMeta, key, value)
	return b
}

// Annotation adds an annotation.
func (b *VMI) Annotation(key, value string) *VMI {
	metav1.SetMetaDataAnnotation(&b.vmi.ObjectMeta, key, value)
	return b
}

// Finalizers adds finalizers.
func (b *VMI) Finalizers(f ...string) *VMI {
	b.vmi.Finalizers = append(b.vmi.Finalizers, f...)
	return b
}

// OwnedBy builds a VM the controller of the VMI.
func (b *VMI) OwnedBy(vm *v1.VirtualMachine) *VMI {
	b.vmi.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
	return b
}

// Guest sets the guest's memory.
func (b *VMI) Guest(memory string) *VMI {
	q := resource.MustParse(memory)
	if b.vmi.Spec.Domain.Memory == nil {
		b.vmi.Spec.Domain.Memory = &v1.Memory{}
	}
	b.vmi.Spec.Domain.Memory.Guest = &q
	return b
}

// CPU sets the topology.
func (b *VMI) CPU(sockets, cores, threads uint32) *VMI {
	cpu := b.vmi.Spec.Domain.CPU
	cpu.Sockets, cpu.Cores, cpu.Threads = sockets, cores, threads
	return b
}

// Request sets a resource request.
func (b *VMI) Request(name corev1.ResourceName, quantity string) *VMI {
	setResource(&b.vmi.Spec.Domain.Resources.Requests, name, quantity)
	return b
}

// Limit sets a resource limit.
func (b *VMI) Limit(name corev1.ResourceName, quantity string) *VMI {
	setResource(&b.vmi.Spec.Domain.Resources.Limits, name, quantity)
	return b
}

func setResource(list *corev1.ResourceList, name corev1.ResourceName, quantity string) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = resource.MustParse(quantity)
}

// Hugepages backs the guest's memory with huge pages.
func (b *VMI) Hugepages(size string) *VMI {
	b.vmi.Spec.Domain.Memory.Hugepages = &v1.Hugepages{PageSize: size}
	return b
}

// Volume adds a volume with a virtio disk.
func (b *VMI) Volume(name string, source v1.VolumeSource) *VMI {
	spec := &b.vmi.Spec
	spec.Volumes = append(spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, v1.Disk{
		Name: name, DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}},
	})
	return b
}

// ContainerDisk adds a disk from an image.
func (b *VMI) ContainerDisk(name, image string) *VMI {
	return b.Volume(name, v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: image}})
}

// PVC adds a disk on a claim.
func (b *VMI) PVC(name, claim string) *VMI {
	source := &v1.PersistentVolumeClaimVolumeSource{}
	source.ClaimName = claim
	return b.Volume(name, v1.VolumeSource{PersistentVolumeClaim: source})
}

// Hotpluggable adds a disk on a claim that may be plugged and unplugged.
func (b *VMI) Hotpluggable(name, claim string) *VMI {
	b.PVC(name, claim)
	b.vmi.Spec.Volumes[len(b.vmi.Spec.Volumes)-1].PersistentVolumeClaim.Hotpluggable = true
	b.vmi.Spec.Domain.Devices.Disks[len(b.vmi.Spec.Domain.Devices.Disks)-1].Disk = &v1.DiskTarget{Bus: v1.DiskBusSCSI}
	return b
}

// EmptyDisk adds an empty disk.
func (b *VMI) EmptyDisk(name, capacity string) *VMI {
	return b.Volume(name, v1.VolumeSource{EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse(capacity)}})
}

// HostDisk adds a disk in a file of the node.
func (b *VMI) HostDisk(name, path string) *VMI {
	return b.Volume(name, v1.VolumeSource{HostDisk: &v1.HostDisk{Path: path, Type: v1.HostDiskExists}})
}

// HostDiskOrCreate adds a disk in a file of the node, which is created if it does not exist.
func (b *VMI) HostDiskOrCreate(name, path, capacity string) *VMI {
	return b.Volume(name, v1.VolumeSource{HostDisk: &v1.HostDisk{
		Path: path, Type: v1.HostDiskExistsOrCreate, Capacity: resource.MustParse(capacity),
	}})
}

// Ephemeral adds a disk with an overlay on a claim.
func (b *VMI) Ephemeral(name, claim string) *VMI {
	return b.Volume(name, v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}})
}

// CloudInit adds cloud-init (NoCloud) user data.
func (b *VMI) CloudInit(name, userData string) *VMI {
	return b.Volume(name, v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: userData}})
}

// CloudInitSecret adds cloud-init (NoCloud) with user and network data from Secrets.
func (b *VMI) CloudInitSecret(name, userData, networkData string) *VMI {
	return b.Volume(name, v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{
		UserDataSecretRef:    &corev1.LocalObjectReference{Name: userData},
		NetworkDataSecretRef: &corev1.LocalObjectReference{Name: networkData},
	}})
}

// KernelBoot boots a kernel from an image.
func (b *VMI) KernelBoot(image string) *VMI {
	b.vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
		Container: &v1.KernelBootContainer{Image: image, KernelPath: "/vmlinuz", InitrdPath: "/initrd"},
	}}
	return b
}

// EFI selects EFI as the firmware.
func (b *VMI) EFI() *VMI {
	b.vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{}}}
	return b
}

// Masquerade adds an interface with masquerade on the Pod network.
func (b *VMI) Masquerade(ports ...v1.Port) *VMI {
	return b.networkInterface(v1.Interface{
		Ports: ports, InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
	})
}

// Bridge adds an interface with a bridge on the Pod network.
func (b *VMI) Bridge() *VMI {
	return b.networkInterface(v1.Interface{
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	})
}

func (b *VMI) networkInterface(i v1.Interface) *VMI {
	i.Name = "default"
	spec := &b.vmi.Spec
	spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces, i)
	spec.Networks = append(spec.Networks, v1.Network{Name: i.Name, NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}})
	return b
}

// Multus adds an interface with a bridge on a network of Multus.
func (b *VMI) Multus(name, definition string) *VMI {
	spec := &b.vmi.Spec
	spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces, v1.Interface{
		Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	})
	spec.Networks = append(spec.Networks, v1.Network{
		Name: name, NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: definition}},
	})
	return b
}

// With applies any change.
func (b *VMI) With(change func(*v1.VirtualMachineInstance)) *VMI { change(&b.vmi); return b }

// Phase sets the phase and its time stamp.
func (b *VMI) Phase(phase v1.VirtualMachineInstancePhase) *VMI {
	b.vmi.Status.Phase = phase
	b.vmi.Status.PhaseTransitionTimestamps = append(b.vmi.Status.PhaseTransitionTimestamps,
		v1.VirtualMachineInstancePhaseTransitionTimestamp{Phase: phase})
	return b
}

// Condition adds a condition.
func (b *VMI) Condition(kind v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, reason,
	message string,
) *VMI {
	b.vmi.Status.Conditions = append(b.vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{
		Type: kind, Status: status, Reason: reason, Message: message,
	})
	return b
}
