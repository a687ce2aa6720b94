// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod/podiface"
)

// bridgeAddress is the address of the launcher's DHCP server on a bridge that has no address in the guest's network.
// Source: KubeVirt.
var bridgeAddress = netip.MustParsePrefix("169.254.75.10/32")

// ensureBridged replaces the Pod with the guest on its network: the Pod's interface becomes a port of a bridge whose other port
// is the guest's tap, and the guest gets the Pod's hardware address and, by DHCP, its IP addresses. A placeholder with the name
// of the Pod's interface keeps the addresses visible in the Pod; it is connected to nothing.
func ensureBridged(planned *Interface, settings *sysctls) (podState, error) {
	if err := displace(planned.PodInterface); err != nil {
		return podState{}, err
	}
	pod, err := readInterface(planned.PodInterface)
	if err != nil {
		return pod, err
	}
	if len(planned.MAC) == 0 {
		planned.MAC = pod.link.Attrs().HardwareAddr
	}
	nic, err := removeAddresses(podiface.Displaced(planned.PodInterface), pod.link)
	if err != nil {
		return pod, err
	}
	name := podiface.Bridge(planned.PodInterface)
	bridge, err := ensureBridge(name, randomMAC(), pod.mtu)
	if err != nil {
		return pod, err
	}
	// Only the guest responds to ARP for the address that the placeholder also has.
	if err := settings.set("ipv4/conf/"+name+"/arp_ignore", 1); err != nil {
		return pod, err
	}
	if err := ensureAddress(bridge, bridgeAddress, 0); err != nil {
		return pod, err
	}
	if err := ensureUp(bridge); err != nil {
		return pod, err
	}
	if err := ensureTap(podiface.Tap(planned.PodInterface), planned.MultiQueue, pod.mtu, bridge); err != nil {
		return pod, err
	}
	if err := ensurePort(nic, pod.mtu, bridge); err != nil {
		return pod, err
	}
	return pod, noLearning(nic)
}

// displace renames the Pod's interface and replaces it with a placeholder that has its addresses. After each step the next call can
// continue: the placeholder has all addresses before the interface loses any.
func displace(name string) error {
	nic, err := find(podiface.Displaced(name))
	if err != nil {
		return err
	}
	if nic == nil {
		original, err := readInterface(name)
		if err != nil {
			return err
		}
		if err := ensurePlaceholder(podiface.Placeholder(name), original); err != nil {
			return err
		}
		if err := netlink.LinkSetDown(original.link); err != nil {
			return fmt.Errorf("set link %s down: %w", name, err)
		}
		if err := netlink.LinkSetName(original.link, podiface.Displaced(name)); err != nil {
			return fmt.Errorf("rename %s to %s: %w", name, podiface.Displaced(name), err)
		}
	}
	inPlace, err := find(name)
	if err != nil {
		return err
	}
	if inPlace == nil {
		if inPlace, err = mustFind(podiface.Placeholder(name)); err != nil {
			return err
		}
		if err := netlink.LinkSetName(inPlace, name); err != nil {
			return fmt.Errorf("rename %s to %s: %w", podiface.Placeholder(name), name, err)
		}
		if inPlace, err = mustFind(name); err != nil {
			return err
		}
	}
	return ensureUp(inPlace)
}

// ensurePlaceholder creates the interface that has the Pod's hardware and IP addresses: a bridge without ports. Every kernel that
// can run a VM's Pod supports bridges.
func ensurePlaceholder(name string, original podState) error {
	placeholder, err := ensureBridge(name, original.link.Attrs().HardwareAddr, original.mtu)
	if err != nil {
		return err
	}
	for _, address := range original.addresses {
		// Without a route: it does not lead to the network.
		if err := ensureAddress(placeholder, address, unix.IFA_F_NOPREFIXROUTE); err != nil {
			return err
		}
	}
	return nil
}

// removeAddresses removes the Pod's hardware and IP addresses from its displaced interface: the guest has them now.
func removeAddresses(name string, placeholder netlink.Link) (netlink.Link, error) {
	nic, err := mustFind(name)
	if err != nil {
		return nil, err
	}
	list, err := netlink.AddrList(nic, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	for i := range list {
		if list[i].Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		if err := netlink.AddrDel(nic, &list[i]); err != nil {
			return nil, fmt.Errorf("remove address %s from %s: %w", list[i].IPNet, name, err)
		}
	}
	if nic.Attrs().HardwareAddr.String() != placeholder.Attrs().HardwareAddr.String() {
		return nic, nil
	}
	if err := netlink.LinkSetHardwareAddr(nic, randomMAC()); err != nil {
		return nil, fmt.Errorf("change the hardware address of %s: %w", name, err)
	}
	return nic, nil
}

// noLearning disables learning of addresses on the bridge's port to the network. All traffic of the guest goes there anyway, and the
// launcher recognizes the guest's DHCP requests by it.
func noLearning(nic netlink.Link) error {
	protection, err := netlink.LinkGetProtinfo(nic)
	if err != nil {
		return fmt.Errorf("read the settings of bridge port %s: %w", nic.Attrs().Name, err)
	}
	if !protection.Learning {
		return nil
	}
	if err := netlink.LinkSetLearning(nic, false); err != nil {
		return fmt.Errorf("stop learning on the bridge port %s: %w", nic.Attrs().Name, err)
	}
	return nil
}
