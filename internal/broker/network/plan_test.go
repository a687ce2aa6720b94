// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod/masquerade"
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
	return v1.Interface{Name: "default", InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}
}

func bridged(name string) v1.Interface {
	return v1.Interface{Name: name, InterfaceBindingMethod: v1.InterfaceBindingMethod{Bridge: &v1.InterfaceBridge{}}}
}

func podNetwork() v1.NetworkSource { return v1.NetworkSource{Pod: &v1.PodNetwork{}} }

func TestDigestDependsOnTheRules(t *testing.T) {
	planned := Interface{PodInterface: "eth0", IPv4: masquerade.DefaultIPv4, IPv6: masquerade.DefaultIPv6}
	pod := podState{addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/24")}}
	all := ipv4Rules(planned, pod).digest()
	if again := ipv4Rules(planned, pod).digest(); again != all {
		t.Error("the digest is not deterministic")
	}
	planned.Ports = []PortRange{ports("TCP", 80, 80)}
	if ipv4Rules(planned, pod).digest() == all {
		t.Error("ports do not change the digest")
	}
}

func TestGuestsAddress(t *testing.T) {
	if got := guest(netip.MustParsePrefix("192.168.7.9/24")).String(); got != "192.168.7.2" {
		t.Errorf("the guest is %s", got)
	}
}
