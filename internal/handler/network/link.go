// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// find is a link by name, or nil.
func find(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the link %s: %w", name, err)
	}
	return link, nil
}

// mustFind is a link by name that has to be there.
func mustFind(name string) (netlink.Link, error) {
	link, err := find(name)
	if err == nil && link == nil {
		err = fmt.Errorf("the Pod has no interface %s", name)
	}
	return link, err
}

// ensureBridge makes a bridge that is missing. Its hardware address is fixed, because a bridge without one
// takes that of its ports and changes it with them.
func ensureBridge(name string, mac net.HardwareAddr, mtu int) (netlink.Link, error) {
	if link, err := find(name); link != nil || err != nil {
		return link, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac, mtu
	snooping := false // a bridge of two ports gains nothing by it, and the guest's IPv6 may lose
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return nil, fmt.Errorf("make the bridge %s: %w", name, err)
	}
	return mustFind(name)
}

// ensureTap makes the guest's tap and plugs it into the bridge.
func ensureTap(name string, multiQueue bool, mtu int, bridge netlink.Link) error {
	tap, err := find(name)
	if err != nil {
		return err
	}
	if tap == nil {
		if err := makeTap(name, multiQueue); err != nil {
			return fmt.Errorf("make the tap %s: %w", name, err)
		}
		if tap, err = mustFind(name); err != nil {
			return err
		}
	}
	return ensurePort(tap, mtu, bridge)
}

// ensurePort plugs a link into a bridge and switches it on.
func ensurePort(port netlink.Link, mtu int, bridge netlink.Link) error {
	name := port.Attrs().Name
	if port.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(port, mtu); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", name, mtu, err)
		}
	}
	if port.Attrs().MasterIndex != bridge.Attrs().Index {
		if err := netlink.LinkSetMaster(port, bridge); err != nil {
			return fmt.Errorf("plug %s into %s: %w", name, bridge.Attrs().Name, err)
		}
	}
	return ensureUp(port)
}

func ensureUp(link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("switch %s on: %w", link.Attrs().Name, err)
	}
	return nil
}

// makeTap makes a tap that stays when its descriptor is closed. That it stays is set last: a tap that an
// interrupted agent did not finish is gone.
func makeTap(name string, multiQueue bool) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun (the agent needs this device): %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if multiQueue {
		// QEMU can open a tap only in the way it was made.
		flags |= unix.IFF_MULTI_QUEUE
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return err
	}
	return errors.Join(
		unix.IoctlSetInt(fd, unix.TUNSETOWNER, launcherpod.QEMUUser),
		unix.IoctlSetInt(fd, unix.TUNSETGROUP, launcherpod.QEMUUser),
		unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
}

// ensureAddress gives a link an address. flags are IFA_F_ flags; IPv6 addresses skip duplicate detection,
// which has nobody to ask.
func ensureAddress(link netlink.Link, address netip.Prefix, flags int) error {
	has, err := addresses(link)
	if err != nil {
		return err
	}
	for _, one := range has {
		if one == address {
			return nil
		}
	}
	if address.Addr().Is6() {
		flags |= unix.IFA_F_NODAD
	}
	ipnet := &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet, Flags: flags}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("give %s the address %s: %w", link.Attrs().Name, address, err)
	}
	return nil
}

// addresses are a link's addresses of global scope.
func addresses(link netlink.Link) ([]netip.Prefix, error) {
	list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", link.Attrs().Name, err)
	}
	var out []netip.Prefix
	for _, one := range list {
		ip, ok := netip.AddrFromSlice(one.IP)
		if !ok || one.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		ones, _ := one.Mask.Size()
		out = append(out, netip.PrefixFrom(ip.Unmap(), ones))
	}
	return out, nil
}

// randomMAC is a locally administered unicast address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}
