// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// find returns a link by name, or nil.
func find(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get link %s: %w", name, err)
	}
	return link, nil
}

// mustFind returns a link by name, or an error if there is none.
func mustFind(name string) (netlink.Link, error) {
	link, err := find(name)
	if err == nil && link == nil {
		err = fmt.Errorf("the Pod has no interface %s", name)
	}
	return link, err
}

// ensureBridge creates a bridge unless it exists. Its hardware address is fixed: otherwise a bridge takes it from its ports, and
// changes it with them.
func ensureBridge(name string, mac net.HardwareAddr, mtu int) (netlink.Link, error) {
	if link, err := find(name); link != nil || err != nil {
		return link, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.MTU = name, mac, mtu
	snooping := false // It is of no use for a bridge of two ports, and can break the guest's IPv6.
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}); err != nil {
		return nil, fmt.Errorf("create bridge %s: %w", name, err)
	}
	return mustFind(name)
}

// ensureTap creates the guest's tap and attaches it to the bridge.
func ensureTap(name string, multiQueue bool, mtu int, bridge netlink.Link) error {
	tap, err := find(name)
	if err != nil {
		return err
	}
	if tap == nil {
		if err := createTap(name, multiQueue); err != nil {
			return fmt.Errorf("create tap %s: %w", name, err)
		}
		if tap, err = mustFind(name); err != nil {
			return err
		}
	}
	return ensurePort(tap, mtu, bridge)
}

// ensurePort attaches a link to a bridge and sets it up.
func ensurePort(port netlink.Link, mtu int, bridge netlink.Link) error {
	name := port.Attrs().Name
	if port.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(port, mtu); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", name, mtu, err)
		}
	}
	if port.Attrs().MasterIndex != bridge.Attrs().Index {
		if err := netlink.LinkSetMaster(port, bridge); err != nil {
			return fmt.Errorf("attach %s to bridge %s: %w", name, bridge.Attrs().Name, err)
		}
	}
	return ensureUp(port)
}

func ensureUp(link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

// createTap creates a persistent tap. Persistence is set last, so that no incomplete tap is left if the broker is interrupted.
func createTap(name string, multiQueue bool) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/net/tun (virt-broker needs this device): %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if multiQueue {
		// QEMU must open a tap with the flags with which it was created.
		flags |= unix.IFF_MULTI_QUEUE
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return err
	}
	return errors.Join(
		unix.IoctlSetInt(fd, unix.TUNSETOWNER, layout.QEMUUser),
		unix.IoctlSetInt(fd, unix.TUNSETGROUP, layout.QEMUUser),
		unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
}

// ensureAddress adds an address to a link. flags are IFA_F_ flags; IPv6 addresses skip duplicate detection, as no one else is on
// these networks.
func ensureAddress(link netlink.Link, address netip.Prefix, flags int) error {
	list, err := addresses(link)
	if err != nil || slices.Contains(list, address) {
		return err
	}
	if address.Addr().Is6() {
		flags |= unix.IFA_F_NODAD
	}
	ipnet := &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())}
	if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet, Flags: flags}); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add address %s to %s: %w", address, link.Attrs().Name, err)
	}
	return nil
}

// addresses returns a link's addresses of global scope.
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

// randomMAC returns a locally administered unicast address.
func randomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = mac[0]&^0x01 | 0x02
	return mac
}
