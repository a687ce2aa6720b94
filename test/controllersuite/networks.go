// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package controllersuite

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// NetworkAttachmentKind is the kind of Multus' networks.
var NetworkAttachmentKind = schema.GroupVersionKind{
	Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition",
}

// WithBlueNetwork adds an interface on a network of Multus.
func WithBlueNetwork(spec *v1.VirtualMachineInstanceSpec) {
	spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces, v1.Interface{
		Name: "blue", InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}},
	})
	spec.Networks = append(spec.Networks, v1.Network{
		Name: "blue", NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "blue-net"}},
	})
}

// InGuest reports the interfaces of a running guest, as the agent does.
func InGuest(names ...string) func(*v1.VirtualMachineInstanceStatus) {
	return func(s *v1.VirtualMachineInstanceStatus) {
		s.Interfaces = nil
		for _, name := range names {
			s.Interfaces = append(s.Interfaces, v1.VirtualMachineInstanceNetworkInterface{
				Name: name, InfoSource: "domain, guest-agent",
			})
		}
	}
}
