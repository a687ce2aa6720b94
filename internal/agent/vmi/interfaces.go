// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/devices"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Values of infoSource of an interface's status. Source: kubevirt/kubevirt pkg/network/vmispec/infosource.go
const (
	fromDomain = "domain"
	fromGuest  = "guest-agent"
	fromMultus = "multus-status"
	// fromSeparator separates the sources of one interface.
	fromSeparator = ", "
)

// setInterfaces sets status.interfaces: the interface of the Pod's network, whose address kubectl shows, the others in
// the order of the spec, then those that only the guest reports, in its order and within maxGuestReport.
func setInterfaces(s *scope) {
	info := s.report().info
	if info == nil {
		info = &hypervisor.GuestInfo{}
	}
	left := reportSpace{bytes: maxGuestReport, omitted: info.Omitted}
	left.take(osInfo(info))
	reported := mergeByMAC(info.Interfaces)
	guest := map[string]hypervisor.GuestInterface{}
	for _, g := range reported {
		guest[g.MAC] = g
	}
	attached := devices.AttachedNetworks(s.Pod)
	var list []v1.VirtualMachineInstanceNetworkInterface
	known := map[string]bool{}
	for i := range s.VMI.Spec.Domain.Devices.Interfaces {
		iface := &s.VMI.Spec.Domain.Devices.Interfaces[i]
		entry, ok := interfaceStatus(s, iface)
		if !ok {
			continue
		}
		network := networkOf(s.VMI, iface.Name)
		setPodInterface(&entry, network, s.Pod, attached)
		if g, ok := guest[entry.MAC]; ok && entry.MAC != "" && left.take(guestOnly(g)) {
			mergeGuest(&entry, g, network != nil && network.IsPrimary())
		}
		if _, ok := attached[entry.PodInterfaceName]; ok && network != nil && network.Multus != nil {
			entry.InfoSource += fromSeparator + fromMultus
		}
		known[entry.MAC] = true
		list = append(list, entry)
	}
	if i := slices.IndexFunc(list,
		func(n v1.VirtualMachineInstanceNetworkInterface) bool { return onPodNetwork(s.VMI, n.Name) }); i > 0 {
		list = slices.Insert(slices.Delete(slices.Clone(list), i, i+1), 0, list[i])
	}
	for _, g := range reported {
		if entry := guestOnly(g); !known[g.MAC] && left.take(entry) {
			list = append(list, entry)
		}
	}
	s.VMI.Status.Interfaces, s.omitted = list, left.omitted
}

// mergeByMAC merges the interfaces of a guest that have one MAC address, as those of a bond, a bridge or a VLAN have.
// As in KubeVirt, the last one gives the name, and the first one that has addresses of a family gives these. Source:
// kubevirt/kubevirt pkg/network/setup/netstat.go
func mergeByMAC(all []hypervisor.GuestInterface) []hypervisor.GuestInterface {
	var merged []hypervisor.GuestInterface
	for _, g := range all {
		same := func(m hypervisor.GuestInterface) bool { return m.MAC == g.MAC && g.MAC != "" }
		i := slices.IndexFunc(merged, same)
		if i < 0 {
			merged = append(merged, g)
			continue
		}
		merged[i].Name = g.Name
		merged[i].IPs = slices.Clone(merged[i].IPs)
		for _, isFamily := range []func(string) bool{isIPv4, isIPv6} {
			if !slices.ContainsFunc(merged[i].IPs, isFamily) {
				merged[i].IPs = append(merged[i].IPs,
					slices.DeleteFunc(slices.Clone(g.IPs), func(ip string) bool { return !isFamily(ip) })...)
			}
		}
	}
	return merged
}

func isIPv6(ip string) bool { return strings.Contains(ip, ":") }

func isIPv4(ip string) bool { return !isIPv6(ip) }

// interfaceStatus returns the status of an interface of the spec according to the domain, and whether the domain has
// the interface.
func interfaceStatus(s *scope, iface *v1.Interface) (v1.VirtualMachineInstanceNetworkInterface, bool) {
	device := domain.FindInterface(s.Domain.XML, domain.InterfaceAlias(iface.Name))
	if device == nil {
		return v1.VirtualMachineInstanceNetworkInterface{}, false
	}
	entry := v1.VirtualMachineInstanceNetworkInterface{
		Name: iface.Name, InfoSource: fromDomain, QueueCount: 1, LinkState: devices.LinkOf(device),
	}
	if device.MAC != nil {
		if mac, err := net.ParseMAC(device.MAC.Address); err == nil {
			entry.MAC = mac.String()
		}
	}
	if device.Driver != nil && device.Driver.Queues > 0 {
		entry.QueueCount = int32(min(device.Driver.Queues, 256))
	}
	return entry, true
}

// setPodInterface sets the Pod interface that an interface is connected to and the addresses at which others reach it.
func setPodInterface(
	entry *v1.VirtualMachineInstanceNetworkInterface, network *v1.Network, pod *corev1.Pod, attached map[string][]string,
) {
	switch {
	case network == nil:
		return
	case network.IsPrimary():
		entry.PodInterfaceName = launcherpod.PrimaryInterface
		entry.IPs = podIPs(pod)
	default:
		entry.PodInterfaceName = launcherpod.SecondaryInterface(network.Name)
		entry.IPs = attached[entry.PodInterfaceName]
	}
	entry.IP = first(entry.IPs)
}

// mergeGuest adds the guest's report. On the Pod's network the status keeps the Pod's addresses, because others cannot
// reach the address that the guest has behind a masquerade.
func mergeGuest(entry *v1.VirtualMachineInstanceNetworkInterface, g hypervisor.GuestInterface, primary bool) {
	entry.InfoSource, entry.InterfaceName = fromDomain+fromSeparator+fromGuest, g.Name
	if !primary && len(g.IPs) > 0 {
		entry.IPs = g.IPs
		entry.IP = first(g.IPs)
	}
}

func guestOnly(g hypervisor.GuestInterface) v1.VirtualMachineInstanceNetworkInterface {
	return v1.VirtualMachineInstanceNetworkInterface{
		MAC: guestMAC(g.MAC), InterfaceName: g.Name, IPs: g.IPs, IP: first(g.IPs), InfoSource: fromGuest,
	}
}

// onPodNetwork reports whether an interface is connected to the Pod's own network.
func onPodNetwork(vmi *v1.VirtualMachineInstance, iface string) bool {
	return slices.ContainsFunc(vmi.Spec.Networks, func(n v1.Network) bool { return n.Name == iface && n.Pod != nil })
}

// networkOf returns the network of an interface, or nil.
func networkOf(vmi *v1.VirtualMachineInstance, iface string) *v1.Network {
	for i := range vmi.Spec.Networks {
		if vmi.Spec.Networks[i].Name == iface {
			return &vmi.Spec.Networks[i]
		}
	}
	return nil
}

func podIPs(pod *corev1.Pod) []string {
	ips := make([]string, 0, len(pod.Status.PodIPs))
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	if len(ips) == 0 && pod.Status.PodIP != "" {
		ips = append(ips, pod.Status.PodIP)
	}
	return ips
}

// first returns the first IPv4 address, or else the first address: most clients that read only one expect IPv4.
func first(ips []string) string {
	if i := slices.IndexFunc(ips, isIPv4); i >= 0 {
		return ips[i]
	}
	if len(ips) > 0 {
		return ips[0]
	}
	return ""
}
