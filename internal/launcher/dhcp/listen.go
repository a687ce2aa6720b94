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
	"time"

	"github.com/go-logr/logr"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// packetSize is larger than an Ethernet frame of 1500 bytes; a longer request is truncated and invalid.
const packetSize = 2048

// failurePause is the pause after a failure to receive: a cause that lasts must not keep a CPU busy.
const failurePause = 100 * time.Millisecond

// serve4 serves DHCPv4 on a bridge until ctx is done.
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
			logr.FromContextOrDiscard(ctx).V(1).Info("Replying", "type", reply.MessageType().String(),
				"mac", request.ClientHWAddr.String(), "address", reply.YourIPAddr.String())
			_, err = conn.WriteTo(reply.ToBytes(), destination(request, reply))
			return err
		})
}

// serve6 serves DHCPv6 on a bridge until ctx is done.
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

// serve listens and calls handle for each packet. It logs invalid packets at a high verbosity.
func serve(ctx context.Context, protocol string, listen func(context.Context) (net.PacketConn, error),
	handle func(net.PacketConn, net.Addr, []byte) error,
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
	log.Info("Serving DHCP")
	buf := make([]byte, packetSize)
	for {
		n, from, err := conn.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// The bridge is removed or down. A removal stops this server.
			log.V(1).Info("Cannot receive", "reason", err.Error())
			if errors.Is(err, unix.ENODEV) {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(failurePause):
			}
			continue
		}
		if err := recoverPanic(func() error { return handle(conn, from, buf[:n]) }); err != nil {
			log.V(1).Info("Ignoring a packet", "reason", err.Error())
		}
	}
}

// recoverPanic returns a panic as an error: a packet on which the parser panics must not terminate PID 1, and with it
// the guest.
func recoverPanic(handle func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the parser panicked: %v", r)
		}
	}()
	return handle()
}

func listen4(ctx context.Context, device string) (net.PacketConn, error) {
	config := net.ListenConfig{Control: control(func(fd int) error {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
			// On a virtual link, the kernel leaves the checksum to offloading, so that packets have a wrong one, which old DHCP
			// clients reject. Zero means "not computed" and is valid for all clients.
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

// onGuestPort reports whether a bridge has learned a hardware address on the guest's port. virt-broker disables
// learning on the port of the Pod's network, so that addresses there are unknown.
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
