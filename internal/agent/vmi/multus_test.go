// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
)

// connectedGuest returns a running guest on the networks that Multus reports as attached.
func connectedGuest(networkStatus string, networks ...v1.Network) *scope {
	vmi := &v1.VirtualMachineInstance{}
	devices := &libvirtxml.DomainDeviceList{}
	for i, network := range networks {
		vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces, v1.Interface{Name: network.Name})
		devices.Interfaces = append(devices.Interfaces, libvirtxml.DomainInterface{
			MAC:   &libvirtxml.DomainInterfaceMAC{Address: fmt.Sprintf("02:00:00:00:00:0%d", i)},
			Alias: &libvirtxml.DomainAlias{Name: domain.InterfaceAlias(network.Name)},
		})
	}
	vmi.Spec.Networks = networks
	pod := &corev1.Pod{}
	pod.Annotations = map[string]string{"k8s.v1.cni.cncf.io/network-status": networkStatus}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.1.0.5"}}
	return &scope{Scope: phase.Scope{VMI: vmi, Pod: pod,
		Domain: &hypervisor.Domain{XML: &libvirtxml.Domain{Devices: devices}}}}
}

func podNet(name string) v1.Network {
	return v1.Network{Name: name, NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{}}}
}

func multusNet(name string, isDefault bool) v1.Network {
	return v1.Network{Name: name,
		NetworkSource: v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: name, Default: isDefault}}}
}

func TestInterfacesOfSeveralNetworks(t *testing.T) {
	const status = `[{"name":"cluster","interface":"eth0","ips":["10.1.0.5"],"default":true},
		{"name":"ns/blue","interface":"pod16477688c0e","ips":["192.168.7.5","fd07::5"],"mac":"02:00:00:00:00:01"},
		{"name":"ns/red","interface":"podb1f51a511f1"}]`
	s := connectedGuest(status, podNet("default"), multusNet("blue", false), multusNet("red", false),
		multusNet("green", false))
	s.guest = &hypervisor.GuestInfo{Interfaces: []hypervisor.GuestInterface{
		{Name: "enp2s0", MAC: "02:00:00:00:00:02", IPs: []string{"172.16.0.9"}},
	}}
	setInterfaces(s)
	want := []v1.VirtualMachineInstanceNetworkInterface{
		{Name: "default", MAC: "02:00:00:00:00:00", PodInterfaceName: "eth0", IP: "10.1.0.5", IPs: []string{"10.1.0.5"},
			InfoSource: "domain", QueueCount: 1, LinkState: "up"},
		{Name: "blue", MAC: "02:00:00:00:00:01", PodInterfaceName: "pod16477688c0e", IP: "192.168.7.5", IPs: []string{"192.168.7.5", "fd07::5"},
			InfoSource: "domain, multus-status", QueueCount: 1, LinkState: "up"},
		{Name: "red", MAC: "02:00:00:00:00:02", PodInterfaceName: "podb1f51a511f1", InterfaceName: "enp2s0", IP: "172.16.0.9",
			IPs: []string{"172.16.0.9"}, InfoSource: "domain, guest-agent, multus-status", QueueCount: 1, LinkState: "up"},
		// Connected, but not reported by Multus yet.
		{Name: "green", MAC: "02:00:00:00:00:03", PodInterfaceName: "podba4788b226a", InfoSource: "domain", QueueCount: 1, LinkState: "up"},
	}
	if diff := cmp.Diff(want, s.VMI.Status.Interfaces); diff != "" {
		t.Error(diff)
	}
}

func TestInterfaceOfPodNetworkIsFirst(t *testing.T) {
	s := connectedGuest(`[]`, multusNet("lan", false), multusNet("san", false), podNet("default"), multusNet("wan", false))
	setInterfaces(s)
	var names []string
	for _, iface := range s.VMI.Status.Interfaces {
		names = append(names, iface.Name)
	}
	if diff := cmp.Diff([]string{"default", "lan", "san", "wan"}, names); diff != "" {
		t.Error(diff)
	}
}

func TestGuestInterfacesOfOneMAC(t *testing.T) {
	const mac, other = "02:00:00:00:00:01", "02:00:00:00:0a:0a"
	s := connectedGuest(`[]`, podNet("default"), multusNet("lan", false))
	s.guest = &hypervisor.GuestInfo{Interfaces: []hypervisor.GuestInterface{
		{Name: "eth1", MAC: mac},
		{Name: "bond0", MAC: mac, IPs: []string{"192.168.7.5"}},
		{Name: "docker0", MAC: other, IPs: []string{"172.17.0.1"}},
		{Name: "bond0.5", MAC: mac, IPs: []string{"10.5.0.1", "fd05::1"}},
		{Name: "sit0"}, {Name: "tun0", IPs: []string{"10.9.0.1"}},
	}}
	setInterfaces(s)
	var got []string
	for _, iface := range s.VMI.Status.Interfaces[1:] {
		got = append(got, iface.InterfaceName+" "+iface.IP+" "+strings.Join(iface.IPs, ",")+" "+iface.InfoSource)
	}
	want := []string{
		"bond0.5 192.168.7.5 192.168.7.5,fd05::1 domain, guest-agent", "docker0 172.17.0.1 172.17.0.1 guest-agent",
		"sit0   guest-agent", "tun0 10.9.0.1 10.9.0.1 guest-agent",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestInterfaceOfMultusDefaultNetwork(t *testing.T) {
	s := connectedGuest(`[{"name":"ns/flat","interface":"eth0","ips":["10.1.0.5"],"default":true}]`, multusNet("flat", true))
	setInterfaces(s)
	got := s.VMI.Status.Interfaces[0]
	if got.PodInterfaceName != "eth0" || got.IP != "10.1.0.5" || got.InfoSource != "domain, multus-status" {
		t.Errorf("got %+v", got)
	}
}
