// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// waitLimit is the timeout of waits for the API server. No test asserts a duration.
const waitLimit = 30 * time.Second

// quantityOf parses a quantity.
func quantityOf(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }

// resources returns a list of a CPU and a memory quantity; "" leaves one out.
func resources(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	if cpu != "" {
		list[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return list
}

// specOption changes a spec.
type specOption func(*v1.VirtualMachineInstanceSpec)

// newSpec returns the smallest valid spec, which has only memory.
func newSpec(options ...specOption) *v1.VirtualMachineInstanceSpec {
	spec := &v1.VirtualMachineInstanceSpec{}
	spec.Domain.Memory = &v1.Memory{Guest: quantityOf("128Mi")}
	for _, option := range options {
		option(spec)
	}
	return spec
}

// newVMI returns a VMI with the spec newSpec.
func newVMI(name string, options ...specOption) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec:       *newSpec(options...),
	}
}

// newVM returns a halted VM with the template newSpec.
func newVM(name string, options ...specOption) *v1.VirtualMachine {
	return &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
		Spec: v1.VirtualMachineSpec{
			RunStrategy: ptr.To(v1.RunStrategyHalted),
			Template:    &v1.VirtualMachineInstanceTemplateSpec{Spec: *newSpec(options...)},
		},
	}
}

// withDisk adds a disk and, unless the source is nil, its volume.
func withDisk(disk v1.Disk, source *v1.VolumeSource) specOption {
	return func(spec *v1.VirtualMachineInstanceSpec) {
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, disk)
		if source != nil {
			spec.Volumes = append(spec.Volumes, v1.Volume{Name: disk.Name, VolumeSource: *source})
		}
	}
}

// withVolume adds a volume without a disk.
func withVolume(name string, source v1.VolumeSource) specOption {
	return func(spec *v1.VirtualMachineInstanceSpec) {
		spec.Volumes = append(spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	}
}

// containerDisk returns a valid volume source.
func containerDisk() *v1.VolumeSource {
	return &v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{Image: "example.org/disk:1"}}
}

// withInterface adds an interface on the Pod network.
func withInterface(iface v1.Interface) specOption {
	return withNIC(iface, v1.NetworkSource{Pod: &v1.PodNetwork{}})
}

// withNIC adds an interface and its network.
func withNIC(iface v1.Interface, source v1.NetworkSource) specOption {
	return func(spec *v1.VirtualMachineInstanceSpec) {
		spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces, iface)
		spec.Networks = append(spec.Networks, v1.Network{Name: iface.Name, NetworkSource: source})
	}
}

// masquerade returns a valid interface for the Pod network.
func masquerade() v1.Interface {
	return v1.Interface{
		Name:                   "default",
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}},
	}
}
