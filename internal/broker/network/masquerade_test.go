// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	v1 "github.com/vireo-project/vireo/api/v1"
	plans "github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

func TestMasquerade(t *testing.T) {
	w := newWorld(t)
	plan := masqueradePlan(t)
	results := ensure(t, w, plan)
	want := map[string]plans.Connected{"default": {
		Tap: "tap0", MAC: plan.Interfaces[0].MAC.String(), MTU: podMTU,
	}}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Error(diff)
	}
	w.connectGuest(t, plan.Interfaces[0].MAC)
	expectStable(t, w, plan, results)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	defaultRoute(t, w.guest, "10.0.2.1")
	address(t, w.guest, "nic0", "fd10:0:2::2/120")
	defaultRoute(t, w.guest, "fd10:0:2::1")

	t.Run("from outside", func(t *testing.T) {
		expectReach(t, w.peer, "10.1.0.5:8080", w.guest, "10.0.2.2:8080",
			"10.1.0.1")
	})
	t.Run("to outside", func(t *testing.T) {
		expectReach(t, w.guest, "10.1.0.1:8081", w.peer, "10.1.0.1:8081",
			"10.1.0.5")
	})
	t.Run("from the Pod's loopback", func(t *testing.T) {
		expectReach(t, w.pod, "127.0.0.1:8082", w.guest, "10.0.2.2:8082", "10.0.2.1")
	})
	t.Run("from outside with IPv6", func(t *testing.T) {
		expectReach(t, w.peer, "[fd01::5]:8083", w.guest, "[fd10:0:2::2]:8083", "fd01::1")
	})
	t.Run("to outside with IPv6", func(t *testing.T) {
		expectReach(t, w.guest, "[fd01::1]:8084", w.peer, "[fd01::1]:8084", "fd01::5")
	})
	t.Run("to the ports of migrations", func(t *testing.T) {
		expectReach(t, w.peer, "10.1.0.5:49152", w.guest, "10.0.2.2:49152", "10.1.0.1")
		expectReach(t, w.pod, "127.0.0.1:49153", w.guest, "10.0.2.2:49153", "10.0.2.1")
	})
}

func TestMigrationPortsAreForwardedAfterTheMigration(t *testing.T) {
	w := newWorld(t)
	plan := planFor(t, func(vmi *v1.VirtualMachineInstance) {
		i := masqueraded()
		i.Ports = []v1.Port{{Port: 8000}, {Port: 49152}}
		addInterface(vmi, i, podNetwork())
	})
	results := ensure(t, w, plans.ForMigrationTarget(plan))
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	defaultRoute(t, w.guest, "10.0.2.1")
	expectReach(t, w.peer, "10.1.0.5:8000", w.guest, "10.0.2.2:8000", "10.1.0.1")
	expectReach(t, w.peer, "10.1.0.5:49152", w.pod, "10.1.0.5:49152", "10.1.0.1")
	expectStable(t, w, plans.ForMigrationTarget(plan), results)

	// With post-copy, the migration's connection is used while the guest runs.
	var listener net.Listener
	inside(t, w.pod, func() (err error) {
		listener, err = net.Listen("tcp", "10.1.0.5:49152")
		return err
	})
	var sent net.Conn
	inside(t, w.peer, func() (err error) {
		sent, err = net.Dial("tcp", "10.1.0.5:49152")
		return err
	})
	defer func() { _ = sent.Close() }()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = accepted.Close() }()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Forward(t.Context(), w.pod, plan); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		page := []byte("page")
		if _, err := sent.Write(page); err != nil {
			t.Fatal(err)
		}
		if err := accepted.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(accepted, page); err != nil {
			t.Errorf("the migration's connection: %v", err)
		}
	}
	expectReach(t, w.peer, "10.1.0.5:8000", w.guest, "10.0.2.2:8000", "10.1.0.1")
	expectReach(t, w.peer, "10.1.0.5:49152", w.guest, "10.0.2.2:49152", "10.1.0.1")
	expectStable(t, w, plan, results)
}

// The Pod forwards the guest's packets, and may have an interface on the migration network.
func TestMigrationNetworkIsClosedToTheGuest(t *testing.T) {
	w := newWorld(t)
	others := newNamespace(t)
	cable(t, others, "wire0", nil, w.pod, v1.MigrationInterfaceName)
	address(t, others, "wire0", "10.9.0.1/24")
	address(t, w.pod, v1.MigrationInterfaceName, "10.9.0.2/24")
	// With this route, only our rules block connections to the guest.
	inside(t, others, func() error {
		wire, err := mustFind("wire0")
		if err != nil {
			return err
		}
		_, guests, _ := net.ParseCIDR("10.0.2.0/24")
		return netlink.RouteAdd(&netlink.Route{LinkIndex: wire.Attrs().Index, Dst: guests, Gw: net.ParseIP("10.9.0.2")})
	})
	plan := masqueradePlan(t)
	ensure(t, w, plan)
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	defaultRoute(t, w.guest, "10.0.2.1")
	expectReach(t, w.pod, "10.9.0.1:8080", others, "10.9.0.1:8080", "10.9.0.2")
	expectClosed := func(t *testing.T, from *Namespace, target string, to *Namespace) {
		t.Helper()
		inside(t, to, func() error {
			listener, err := net.Listen("tcp", target)
			if err == nil {
				t.Cleanup(func() { _ = listener.Close() })
			}
			return err
		})
		expectNoReach(t, from, target)
	}
	expectClosed(t, w.guest, "10.9.0.1:8081", others)
	expectClosed(t, others, "10.0.2.2:8082", w.guest)
}

// A guest that sends to 127.0.0.1 through its gateway would reach the Pod's loopback, because the bridge accepts such
// addresses.
func TestLoopbackOfThePodIsClosedToTheGuest(t *testing.T) {
	w := newWorld(t)
	plan := masqueradePlan(t)
	ensure(t, w, plan)
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	inside(t, w.guest, func() error {
		procfs, err := podprocess.MountKernelFS("proc")
		if err != nil {
			return err
		}
		defer func() { _ = procfs.Close() }()
		lo, err := mustFind("lo")
		if err != nil {
			return err
		}
		to := &net.IPNet{IP: net.IPv4(127, 0, 0, 1).To4(), Mask: net.CIDRMask(32, 32)}
		own := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}
		return errors.Join(apply(procfs, networkapi.RouteLoopback, "nic0"), netlink.AddrDel(lo, own),
			netlink.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP("10.0.2.1")}))
	})
	var listener net.Listener
	inside(t, w.pod, func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:49152")
		return err
	})
	defer func() { _ = listener.Close() }()
	expectNoReach(t, w.guest, "127.0.0.1:49152")

	inside(t, w.pod, deleteRules)
	inside(t, w.guest, func() error {
		conn, err := net.DialTimeout("tcp", "127.0.0.1:49152", 5*time.Second)
		if err != nil {
			return fmt.Errorf("the test is void: without the rules, the guest does not reach it either: %w", err)
		}
		return conn.Close()
	})
}

func TestMasqueradeForwardsListedPortsOnly(t *testing.T) {
	w := newWorld(t)
	plan := masqueradePlan(t, v1.Port{Port: 8080})
	results := ensure(t, w, plan)
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	defaultRoute(t, w.guest, "10.0.2.1")
	expectReach(t, w.peer, "10.1.0.5:8080", w.guest, "10.0.2.2:8080", "10.1.0.1")
	expectReach(t, w.peer, "10.1.0.5:8081", w.pod, "10.1.0.5:8081", "10.1.0.1")
	expectStable(t, w, plan, results)
}

func TestMasqueradeForwardsRangesOfPorts(t *testing.T) {
	w := newWorld(t)
	plan := planFor(t, func(vmi *v1.VirtualMachineInstance) {
		i := masqueraded()
		i.PortRanges = []v1.PortRange{
			{Protocol: "TCP", Start: 8000, End: 8002}, {Protocol: "TCP", Start: 49000, End: 50000}, {Protocol: "UDP", Start: 8002, End: 8003},
		}
		addInterface(vmi, i, podNetwork())
	})
	results := ensure(t, w, plan)
	w.connectGuest(t, plan.Interfaces[0].MAC)
	address(t, w.guest, "nic0", "10.0.2.2/24")
	defaultRoute(t, w.guest, "10.0.2.1")
	address(t, w.guest, "nic0", "fd10:0:2::2/120")
	defaultRoute(t, w.guest, "fd10:0:2::1")
	for _, c := range []struct{ name, port, pod, guest, peer string }{
		{"IPv4", "8000", "10.1.0.5", "10.0.2.2", "10.1.0.1"},
		{"IPv4, the ports of migrations", "49153", "10.1.0.5", "10.0.2.2", "10.1.0.1"},
		{"IPv4, the range's end", "8002", "10.1.0.5", "10.0.2.2", "10.1.0.1"},
		{"IPv6", "8001", "fd01::5", "fd10:0:2::2", "fd01::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expectReach(t, w.peer, net.JoinHostPort(c.pod, c.port), w.guest, net.JoinHostPort(c.guest, c.port), c.peer)
		})
	}
	for _, c := range []struct{ name, port, pod, peer string }{
		{"before the range", "7999", "10.1.0.5", "10.1.0.1"},
		{"after the range", "8003", "10.1.0.5", "10.1.0.1"},
		{"after the range, IPv6", "8003", "fd01::5", "fd01::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := net.JoinHostPort(c.pod, c.port)
			expectReach(t, w.peer, at, w.pod, at, c.peer)
		})
	}
	t.Run("from the Pod's loopback", func(t *testing.T) {
		expectReach(t, w.pod, "127.0.0.1:8001", w.guest, "10.0.2.2:8001", "10.0.2.1")
	})
	for _, c := range []struct{ pod, guest string }{{"10.1.0.5", "10.0.2.2"}, {"fd01::5", "fd10:0:2::2"}} {
		t.Run("UDP to "+c.pod, func(t *testing.T) {
			expectDatagram(t, w.peer, net.JoinHostPort(c.pod, "8003"), w.guest, net.JoinHostPort(c.guest, "8003"))
			expectDatagram(t, w.peer, net.JoinHostPort(c.pod, "8001"), w.pod, net.JoinHostPort(c.pod, "8001"))
		})
	}
	expectStable(t, w, plan, results)
}

// expectDatagram sends a datagram from one namespace and waits for it in another.
func expectDatagram(t *testing.T, from *Namespace, target string, to *Namespace, listen string) {
	t.Helper()
	var listener net.PacketConn
	inside(t, to, func() (err error) {
		listener, err = net.ListenPacket("udp", listen)
		return err
	})
	defer func() { _ = listener.Close() }()
	var conn net.Conn
	inside(t, from, func() (err error) {
		conn, err = net.Dial("udp", target)
		return err
	})
	defer func() { _ = conn.Close() }()
	buf := make([]byte, 16)
	for range 20 {
		_, _ = io.WriteString(conn, "hello")
		_ = listener.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if n, _, err := listener.ReadFrom(buf); err == nil && string(buf[:n]) == "hello" {
			return
		}
	}
	t.Errorf("datagrams to %s are not received at %s", target, listen)
}
