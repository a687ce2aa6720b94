// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/brokerapi/networkapi"
)

const (
	// routerSolicitation is the type of ICMPv6 message that a guest sends to find its gateway (RFC 4861, 4.1).
	routerSolicitation = 133
	// ndHops is the only hop limit with which a neighbor accepts a message of router discovery.
	ndHops = 255
)

var allRouters = net.ParseIP("ff02::2")

// OpenRouter opens a socket for router discovery on a bridge of a Pod, and describes the bridge. It returns no socket if
// the Pod has no IPv6. The socket sends and receives on the bridge only, and receives solicitations only. Call it after the
// guest was connected; it needs CAP_NET_RAW.
func OpenRouter(namespace *Namespace, name string) (*os.File, networkapi.OpenRouterResult, error) {
	var socket *os.File
	var result networkapi.OpenRouterResult
	err := namespace.Do(func() error {
		bridge, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		list, err := addresses(bridge)
		if err != nil || !slices.ContainsFunc(list, func(address netip.Prefix) bool { return address.Addr().Is6() }) {
			return err
		}
		result.MAC, result.MTU = bridge.Attrs().HardwareAddr, bridge.Attrs().MTU
		socket, err = listenRouter(bridge.Attrs())
		return err
	})
	if err != nil {
		return nil, networkapi.OpenRouterResult{}, fmt.Errorf("open a socket to advertise the guest's IPv6 gateway: %w", err)
	}
	return socket, result, nil
}

// listenRouter opens a socket for router discovery on a bridge. The kernel sets the checksum.
func listenRouter(bridge *netlink.LinkAttrs) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMPV6)
	if err != nil {
		return nil, err
	}
	group := &unix.IPv6Mreq{Interface: uint32(bridge.Index)}
	copy(group.Multiaddr[:], allRouters)
	// The kernel passes on solicitations only: set bits block (RFC 3542, 3.2).
	filter := &unix.ICMPv6Filter{}
	for i := range filter.Data {
		filter.Data[i] = math.MaxUint32
	}
	filter.Data[routerSolicitation/32] &^= 1 << (routerSolicitation % 32)
	socket := os.NewFile(uintptr(fd), "router")
	err = errors.Join(
		unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, filter),
		unix.BindToDevice(fd, bridge.Name),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, ndHops),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ndHops),
		unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, group))
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return socket, nil
}
