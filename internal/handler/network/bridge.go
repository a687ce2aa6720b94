// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/podiface"
)

// bridgeAddress identifies the launcher's DHCP server on a bridge without an address of the guest's network.
// KubeVirt's value.
var bridgeAddress = netip.MustParsePrefix("169.254.75.10/32")

// ensureBridged gives the guest the Pod's place on its network: the Pod's interface becomes a port of a bridge
// whose other port is the guest's tap, and the guest gets the Pod's hardware address and, by DHCP, its IP
// addresses. An interface of the old name keeps the addresses visible in the Pod; it is connected to nothing.
func ensureBridged(planned *Interface, settings *sysctls) (seen, error) {
	if err := displace(planned.PodInterface); err != nil {
		return seen{}, err
	}
	pod, err := readInterface(planned.PodInterface)
	if err != nil {
		return pod, err
	}
	if len(planned.MAC) == 0 {
		planned.MAC = pod.link.Attrs().HardwareAddr
	}
	nic, err := anonymize(podiface.Displaced(planned.PodInterface), pod.link)
	if err != nil {
		return pod, err
	}
	name := podiface.Bridge(planned.PodInterface)
	bridge, err := ensureBridge(name, randomMAC(), pod.mtu)
	if err != nil {
		return pod, err
	}
	// The guest alone answers for the address that the Pod still shows.
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

// displace renames the Pod's interface and puts a keeper of its addresses in its place. Each step leaves a state
// from which the next call goes on: the keeper has everything before the interface loses anything.
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
		if err := ensureKeeper(podiface.Keeper(name), original); err != nil {
			return err
		}
		if err := netlink.LinkSetDown(original.link); err != nil {
			return fmt.Errorf("switch %s off: %w", name, err)
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
		if inPlace, err = mustFind(podiface.Keeper(name)); err != nil {
			return err
		}
		if err := netlink.LinkSetName(inPlace, name); err != nil {
			return fmt.Errorf("rename %s to %s: %w", podiface.Keeper(name), name, err)
		}
		if inPlace, err = mustFind(name); err != nil {
			return err
		}
	}
	return ensureUp(inPlace)
}

// ensureKeeper makes the interface that keeps the Pod's hardware and IP addresses: a bridge without ports, which
// leads nowhere and which every kernel that can run a VM's Pod has.
func ensureKeeper(name string, original seen) error {
	keeper, err := ensureBridge(name, original.link.Attrs().HardwareAddr, original.mtu)
	if err != nil {
		return err
	}
	for _, address := range original.addresses {
		// No route: the network is not behind it.
		if err := ensureAddress(keeper, address, unix.IFA_F_NOPREFIXROUTE); err != nil {
			return err
		}
	}
	return nil
}

// anonymize takes the Pod's addresses from its displaced interface; the guest has them now.
func anonymize(name string, keeper netlink.Link) (netlink.Link, error) {
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
			return nil, fmt.Errorf("take the address %s from %s: %w", list[i].IPNet, name, err)
		}
	}
	if nic.Attrs().HardwareAddr.String() != keeper.Attrs().HardwareAddr.String() {
		return nic, nil
	}
	if err := netlink.LinkSetHardwareAddr(nic, randomMAC()); err != nil {
		return nil, fmt.Errorf("change the hardware address of %s: %w", name, err)
	}
	return nic, nil
}

// noLearning keeps the bridge from learning addresses on the network's side. Everything that the guest sends
// goes there anyway, and the launcher tells the guest's DHCP requests from those of others by it.
func noLearning(nic netlink.Link) error {
	protection, err := netlink.LinkGetProtinfo(nic)
	if err != nil {
		return fmt.Errorf("look at the bridge port %s: %w", nic.Attrs().Name, err)
	}
	if !protection.Learning {
		return nil
	}
	if err := netlink.LinkSetLearning(nic, false); err != nil {
		return fmt.Errorf("stop learning on the bridge port %s: %w", nic.Attrs().Name, err)
	}
	return nil
}
