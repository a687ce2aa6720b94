// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// packetSize is more than an Ethernet frame of 1500 bytes can bring; a longer request is cut and not understood.
const packetSize = 2048

// serve4 answers DHCPv4 on a bridge until ctx ends.
func (l Lease) serve4(ctx context.Context, bridge string, allowed func(net.HardwareAddr) bool) {
	serve(ctx, "DHCPv4", func(ctx context.Context) (net.PacketConn, error) { return listen4(ctx, bridge) },
		func(conn net.PacketConn, _ net.Addr, packet []byte) error {
			request, err := dhcpv4.FromBytes(packet)
			if err != nil {
				return err
			}
			if allowed != nil && !allowed(request.ClientHWAddr) {
				return nil
			}
			reply, err := l.reply(request)
			if err != nil || reply == nil {
				return err
			}
			logr.FromContextOrDiscard(ctx).V(1).Info("Answering", "type", reply.MessageType().String(),
				"mac", request.ClientHWAddr.String(), "address", reply.YourIPAddr.String())
			_, err = conn.WriteTo(reply.ToBytes(), destination(request, reply))
			return err
		})
}

// serve6 answers DHCPv6 on a bridge until ctx ends.
func (l Lease) serve6(ctx context.Context, bridge netlink.Link) {
	server := serverID(bridge.Attrs().HardwareAddr)
	serve(ctx, "DHCPv6", func(ctx context.Context) (net.PacketConn, error) {
		return listen6(ctx, bridge.Attrs().Name, bridge.Attrs().Index)
	}, func(conn net.PacketConn, from net.Addr, packet []byte) error {
		request, err := dhcpv6.MessageFromBytes(packet)
		if err != nil {
			return err
		}
		reply, err := l.reply6(request, server)
		if err != nil || reply == nil {
			return err
		}
		_, err = conn.WriteTo(reply.ToBytes(), from)
		return err
	})
}

// serve listens and hands each packet to answer. A packet that is not understood is the guest's affair: it is
// logged for developers and passed over.
func serve(ctx context.Context, protocol string, listen func(context.Context) (net.PacketConn, error),
	answer func(net.PacketConn, net.Addr, []byte) error,
) {
	log := logr.FromContextOrDiscard(ctx).WithValues("protocol", protocol)
	conn, err := listen(ctx)
	if err != nil {
		log.Error(err, "No DHCP on this bridge")
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	log.Info("Answering DHCP requests")
	buf := make([]byte, packetSize)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// The bridge is gone or down; its removal ends this server.
			log.V(1).Info("Cannot receive", "reason", err.Error())
			if errors.Is(err, unix.ENODEV) {
				return
			}
			continue
		}
		if err := guarded(func() error { return answer(conn, from, buf[:n]) }); err != nil {
			log.V(1).Info("Passing over a packet", "reason", err.Error())
		}
	}
}

// guarded keeps a packet that the parser chokes on from ending PID 1, and the guest with it.
func guarded(answer func() error) (err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("the packet broke the parser: %v", problem)
		}
	}()
	return answer()
}

func listen4(ctx context.Context, device string) (net.PacketConn, error) {
	config := net.ListenConfig{Control: control(func(fd int) error {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
			// Inside of one machine checksums are left to hardware that is not there, and old DHCP clients
			// read packets before that is made good. Zero means "not computed" and is right for all.
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1),
			unix.BindToDevice(fd, device))
	})}
	return config.ListenPacket(ctx, "udp4", fmt.Sprintf(":%d", dhcpv4.ServerPort))
}

func listen6(ctx context.Context, device string, index int) (net.PacketConn, error) {
	config := net.ListenConfig{Control: control(func(fd int) error {
		group := &unix.IPv6Mreq{Interface: uint32(index)}
		copy(group.Multiaddr[:], dhcpv6.AllDHCPRelayAgentsAndServers)
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.BindToDevice(fd, device),
			unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, group))
	})}
	return config.ListenPacket(ctx, "udp6", fmt.Sprintf("[::]:%d", dhcpv6.DefaultServerPort))
}

func control(set func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var failed error
		if err := raw.Control(func(fd uintptr) { failed = set(int(fd)) }); err != nil {
			return err
		}
		return failed
	}
}

// onGuestPort says whether a bridge learned a hardware address on the guest's side. The agent turns learning
// off on the side of the Pod's network, so an address from there is not known at all.
func onGuestPort(bridge int, mac net.HardwareAddr) bool {
	entries, err := netlink.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if entry.MasterIndex != bridge || entry.HardwareAddr.String() != mac.String() {
			continue
		}
		port, err := netlink.LinkByIndex(entry.LinkIndex)
		if err == nil && !strings.HasSuffix(port.Attrs().Name, launcherpod.DisplacedSuffix) {
			return true
		}
	}
	return false
}
