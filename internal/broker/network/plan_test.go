// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// vmiWith returns a VMI with some changes.
func vmiWith(change func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "fedora", UID: "1"}}
	change(vmi)
	return vmi
}

func addInterface(vmi *v1.VirtualMachineInstance, i v1.Interface, source v1.NetworkSource) {
	vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, i)
	vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: i.Name, NetworkSource: source})
}

func masqueraded() v1.Interface {
	return v1.Interface{Name: "default",
		InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}
}

func bridged(name string) v1.Interface {
	return v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}
}

func podNetwork() v1.NetworkSource { return v1.NetworkSource{Pod: &v1.PodNetwork{}} }
