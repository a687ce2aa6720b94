// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/launcherpod/masquerade"
)

var interfacesPath = field.NewPath("spec", "domain", "devices", "interfaces")

// interfaceArguments returns the launcher's arguments for its DHCP servers on Pod interfaces.
func interfaceArguments(vmi *v1.VirtualMachineInstance) ([]string, error) {
	networks := map[string]*v1.Network{}
	for i := range vmi.Spec.Networks {
		networks[vmi.Spec.Networks[i].Name] = &vmi.Spec.Networks[i]
	}
	var out []string
	for i := range vmi.Spec.Domain.Devices.Interfaces {
		iface := &vmi.Spec.Domain.Devices.Interfaces[i]
		if iface.State == v1.InterfaceStateAbsent {
			continue
		}
		network := networks[iface.Name]
		if network == nil || network.Pod == nil && network.Multus == nil {
			return nil, fmt.Errorf("interface %s: only an interface on the Pod network or on one of Multus can be connected", iface.Name)
		}
		argument, err := interfaceArgument(iface, network)
		if err != nil {
			return nil, err
		}
		options, err := dhcpArguments(interfacesPath.Index(i), iface, PodInterface(network))
		if err != nil {
			return nil, err
		}
		out = append(append(out, "--interface", argument), options...)
	}
	return out, nil
}

func interfaceArgument(iface *v1.Interface, network *v1.Network) (string, error) {
	switch {
	case iface.Masquerade != nil && network.Pod != nil:
		ipv4, err := masquerade.IPv4(network.Pod.VMNetworkCIDR)
		if err != nil {
			return "", fmt.Errorf("network %s: vmNetworkCIDR %w", network.Name, err)
		}
		ipv6, err := masquerade.IPv6(network.Pod.VMIPv6NetworkCIDR)
		if err != nil {
			return "", fmt.Errorf("network %s: vmIPv6NetworkCIDR %w", network.Name, err)
		}
		return strings.Join([]string{launcherpod.PrimaryInterface, "masquerade", ipv4.String(), ipv6.String()}, ","), nil
	case iface.Bridge != nil:
		return PodInterface(network) + ",bridge", nil
	default:
		return "", fmt.Errorf("interface %s: its binding is neither masquerade on the Pod network nor bridge", iface.Name)
	}
}

// ports returns the guest's ports as container ports. They only make names for Services: other ports are reachable as well.
func ports(vmi *v1.VirtualMachineInstance) []corev1.ContainerPort {
	var out []corev1.ContainerPort
	for _, iface := range vmi.Spec.Domain.Devices.Interfaces {
		for _, port := range iface.Ports {
			protocol := corev1.Protocol(strings.ToUpper(port.Protocol))
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			out = append(out, corev1.ContainerPort{Name: port.Name, ContainerPort: port.Port, Protocol: protocol})
		}
	}
	return out
}
