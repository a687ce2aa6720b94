// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/onsi/gomega/gbytes"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/dhcp"
	"github.com/vireo-project/vireo/internal/launcher/podnet"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// dhcpEnv makes the test binary run the launcher's DHCP server.
const dhcpEnv = "VIREO_TEST_DHCP"

func TestMain(m *testing.M) {
	if directory := os.Getenv(dhcpEnv); directory != "" {
		fmt.Fprintln(os.Stderr, serveAsLauncher(directory, os.Args[1], os.Args[2:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func serveAsLauncher(resolvConf, texts string, options []string) error {
	snapshot, err := podnet.TakeSnapshot(resolvConf)
	if err != nil {
		return err
	}
	var interfaces []dhcp.Interface
	for text := range strings.FieldsSeq(texts) {
		i, err := dhcp.ParseInterface(text)
		if err != nil {
			return err
		}
		interfaces = append(interfaces, i)
	}
	if err := dhcp.AddOptions(interfaces, options); err != nil {
		return err
	}
	fmt.Println("ready")
	return dhcp.Serve(context.Background(), interfaces, snapshot)
}

// startLauncherDHCP runs the launcher's DHCP server in the Pod, as the launcher's user and without capabilities. The
// interfaces are separated by spaces.
func startLauncherDHCP(t *testing.T, w world, interfaces string, options ...string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file,
		[]byte("nameserver 10.96.0.10\nnameserver fd96::a\nsearch ns.svc.cluster.local svc.cluster.local\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(file); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		_ = os.Chmod(dir, 0o755)
	}
	// A copy that the user can execute.
	binary := filepath.Join(filepath.Dir(file), "launcher")
	content, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(binary, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	out := gbytes.NewBuffer()
	cmd := exec.Command(binary, append([]string{interfaces}, options...)...)
	cmd.Env = append(os.Environ(), dhcpEnv+"="+file)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: layout.QEMUUser, Gid: layout.QEMUUser}}
	inside(t, w.pod, cmd.Start) // A child inherits the thread's namespace.
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(string(out.Contents()))
		}
	})
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(string(out.Contents()),
		"ready"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the DHCP server does not start: %s", string(out.Contents()))
		}
	}
}

// client is a UDP socket on the guest's interface.
func client(t *testing.T, w world, network, listen string) net.PacketConn {
	t.Helper()
	var conn net.PacketConn
	inside(t, w.guest, func() (err error) {
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			err := raw.Control(func(fd uintptr) {
				failed = unix.BindToDevice(int(fd), "nic0")
				if failed == nil && network == "udp4" {
					failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
				}
			})
			if err != nil {
				return err
			}
			return failed
		}}
		conn, err = config.ListenPacket(context.Background(), network, listen)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// exchange sends a packet until a response is received: the server may not listen yet.
func exchange(t *testing.T, conn net.PacketConn, to net.Addr, packet []byte) []byte {
	t.Helper()
	buf := make([]byte, 2048)
	for range 40 {
		_, _ = conn.WriteTo(packet, to)
		_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if n, _, err := conn.ReadFrom(buf); err == nil {
			return buf[:n]
		}
	}
	t.Fatal("no response")
	return nil
}

// lease4 gets a lease like a guest: discover, offer, request and acknowledgement.
func lease4(t *testing.T, w world, mac net.HardwareAddr) *dhcpv4.DHCPv4 {
	t.Helper()
	conn := client(t, w, "udp4", ":68")
	server := &net.UDPAddr{IP: net.IPv4bcast, Port: 67}
	// A malformed packet must not stop the server.
	_, _ = conn.WriteTo([]byte{1, 2, 3}, server)
	discover, err := dhcpv4.NewDiscovery(mac)
	if err != nil {
		t.Fatal(err)
	}
	offer, err := dhcpv4.FromBytes(exchange(t, conn, server, discover.ToBytes()))
	if err != nil {
		t.Fatal(err)
	}
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		t.Fatal(err)
	}
	ack, err := dhcpv4.FromBytes(exchange(t, conn, server, request.ToBytes()))
	if err != nil {
		t.Fatal(err)
	}
	if ack.MessageType() != dhcpv4.MessageTypeAck {
		t.Fatalf("got %s", ack.Summary())
	}
	return ack
}

func TestDHCPWithMasquerade(t *testing.T) {
	w := newWorld(t)
	startLauncherDHCP(t, w, "eth0,masquerade,10.0.2.0/24,fd10:0:2::/120")
	plan := masqueradePlan(t)
	ensure(t, w, plan)
	mac := plan.Interfaces[0].MAC
	w.connectGuest(t, mac)
	ack := lease4(t, w, mac)
	if ack.YourIPAddr.String() != "10.0.2.2" || ack.Router()[0].String() != "10.0.2.1" ||
		ack.DNS()[0].String() != "10.96.0.10" {
		t.Errorf("the lease is %s", ack.Summary())
	}
	if mtu := ack.Options.Get(dhcpv4.OptionInterfaceMTU); len(mtu) != 2 || int(mtu[0])<<8+int(mtu[1]) != podMTU {
		t.Errorf("the MTU is %v", mtu)
	}

	solicit, err := dhcpv6.NewSolicit(mac)
	if err != nil {
		t.Fatal(err)
	}
	conn := client(t, w, "udp6", "[::]:546")
	to := &net.UDPAddr{IP: dhcpv6.AllDHCPRelayAgentsAndServers, Port: 547, Zone: "nic0"}
	advertise, err := dhcpv6.MessageFromBytes(exchange(t, conn, to, solicit.ToBytes()))
	if err != nil {
		t.Fatal(err)
	}
	if association := advertise.Options.OneIANA(); association == nil ||
		association.Options.OneAddress().IPv6Addr.String() != "fd10:0:2::2" {
		t.Errorf("the advertisement is %s", advertise.Summary())
	}
}

func TestDHCPWithBridge(t *testing.T) {
	w := newWorld(t)
	startLauncherDHCP(t, w, "eth0,bridge", "eth0,67,pxelinux.0", "eth0,240,a+text")
	plan := bridgePlan(t)
	ensure(t, w, plan)
	w.connectGuest(t, podMAC)
	ack := lease4(t, w, podMAC)
	if private := ack.Options.Get(dhcpv4.GenericOptionCode(240)); ack.BootFileNameOption() != "pxelinux.0" ||
		string(private) != "a text" {
		t.Errorf("the added options are missing: %s", ack.Summary())
	}
	if ack.YourIPAddr.String() != "10.1.0.5" || ack.Router()[0].String() != "10.1.0.1" ||
		net.IP(ack.SubnetMask()).String() != "255.255.255.0" {
		t.Errorf("the lease is %s", ack.Summary())
	}
}

func TestDHCPWithBridgeIgnoresOthersOnTheNetwork(t *testing.T) {
	w := newWorld(t)
	startLauncherDHCP(t, w, "eth0,bridge")
	plan := bridgePlan(t)
	ensure(t, w, plan)
	w.connectGuest(t, podMAC)
	lease4(t, w, podMAC) // Now the server is up.

	other := w
	other.guest = w.peer
	// client binds to this name.
	inside(t, w.peer, func() error {
		link, err := mustFind("peer0")
		if err != nil {
			return err
		}
		return netlink.LinkSetName(link, "nic0")
	})
	conn := client(t, other, "udp4", ":68")
	discover, err := dhcpv4.NewDiscovery(net.HardwareAddr{0x0a, 0, 0, 0, 0, 0x77})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, _ = conn.WriteTo(discover.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67})
	}
	_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if _, _, err := conn.ReadFrom(make([]byte, 2048)); err == nil {
		t.Error("another host on the Pod's network got a response")
	}
}
