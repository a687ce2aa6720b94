// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"

	v1 "github.com/vireo-project/vireo/api/v1"
	plans "github.com/vireo-project/vireo/internal/agent/network"
)

// The Pod's interfaces on the networks blue and red.
const (
	bluePod = "pod16477688c0e"
	redPod  = "podb1f51a511f1"
)

var (
	blueMAC = net.HardwareAddr{0x0a, 0, 0, 0, 0, 0x0b}
	redMAC  = net.HardwareAddr{0x0a, 0, 0, 0, 0, 0x0c}
)

// newSecondaryWorld returns a Pod to which Multus has attached two networks: blue, with an address, and red, without.
func newSecondaryWorld(t *testing.T) world {
	t.Helper()
	w := newWorld(t)
	cable(t, w.pod, bluePod, blueMAC, w.peer, "blue0")
	address(t, w.pod, bluePod, "192.168.7.5/24")
	address(t, w.peer, "blue0", "192.168.7.1/24")
	cable(t, w.pod, redPod, redMAC, w.peer, "red0")
	address(t, w.peer, "red0", "172.16.0.1/24")
	return w
}

func secondaryPlan(t *testing.T) Plan {
	t.Helper()
	return planFor(t, func(vmi *v1.VirtualMachineInstance) {
		addInterface(vmi, masqueraded(), podNetwork())
		for _, name := range []string{"blue", "red"} {
			addInterface(vmi, bridged(name), v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "ns/" + name}})
		}
	})
}

// nicOn returns the world with another guest namespace on a secondary network, for another interface of the same guest.
func (w world) nicOn(t *testing.T, mac net.HardwareAddr, bridge, by string) world {
	t.Helper()
	w.guest = newNamespace(t)
	w.connectGuestTo(t, mac, bridge, by)
	return w
}

func TestSecondaryNetworks(t *testing.T) {
	w := newSecondaryWorld(t)
	startLauncherDHCP(t, w, "eth0,masquerade,10.0.2.0/24,fd10:0:2::/120 "+bluePod+",bridge "+redPod+",bridge",
		bluePod+",67,blue.efi")
	plan := secondaryPlan(t)
	results := ensure(t, w, plan)
	want := map[string]plans.Connected{
		"default": {Tap: "tap0", MAC: plan.Interfaces[0].MAC.String(), MTU: podMTU},
		"blue":    {Tap: "tap16477688c0e", MAC: blueMAC.String(), MTU: podMTU},
		"red":     {Tap: "tapb1f51a511f1", MAC: redMAC.String(), MTU: podMTU},
	}
	if diff := cmp.Diff(want, results); diff != "" {
		t.Error(diff)
	}
	w.connectGuest(t, plan.Interfaces[0].MAC)
	blue := w.nicOn(t, blueMAC, "k6t-16477688c0e", "cable1")
	red := w.nicOn(t, redMAC, "k6t-b1f51a511f1", "cable2")
	expectStable(t, w, plan, results)

	t.Run("addresses by DHCP", func(t *testing.T) {
		if ack := lease4(t, w, plan.Interfaces[0].MAC); ack.YourIPAddr.String() != "10.0.2.2" ||
			ack.BootFileNameOption() != "" {
			t.Errorf("the Pod network's lease is %s", ack.Summary())
		}
		ack := lease4(t, blue, blueMAC)
		if ack.YourIPAddr.String() != "192.168.7.5" || len(ack.Router()) != 0 || ack.BootFileNameOption() != "blue.efi" {
			t.Errorf("blue's lease is %s", ack.Summary())
		}
		expectNoLease(t, red, redMAC)
	})
	t.Run("the guest is on each network", func(t *testing.T) {
		address(t, w.guest, "nic0", "10.0.2.2/24")
		defaultRoute(t, w.guest, "10.0.2.1")
		expectReach(t, w.guest, "10.1.0.1:8081", w.peer, "10.1.0.1:8081", "10.1.0.5")
		address(t, blue.guest, "nic0", "192.168.7.5/24")
		expectReach(t, w.peer, "192.168.7.5:8082", blue.guest, "192.168.7.5:8082", "192.168.7.1")
		// Without DHCP the guest configures an address itself.
		address(t, red.guest, "nic0", "172.16.0.9/24")
		expectReach(t, red.guest, "172.16.0.1:8083", w.peer, "172.16.0.1:8083", "172.16.0.9")
		expectReach(t, w.peer, "172.16.0.9:8084", red.guest, "172.16.0.9:8084", "172.16.0.1")
	})
}

// expectNoLease checks that there is no response to a discover message.
func expectNoLease(t *testing.T, w world, mac net.HardwareAddr) {
	t.Helper()
	conn := client(t, w, "udp4", ":68")
	discover, err := dhcpv4.NewDiscovery(mac)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, _ = conn.WriteTo(discover.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67})
	}
	_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if _, _, err := conn.ReadFrom(make([]byte, 2048)); err == nil {
		t.Error("a lease on a network without addresses")
	}
}

// Multus may replace the Pod's primary interface. It has the usual name.
func TestMultusDefaultNetwork(t *testing.T) {
	w := newWorld(t)
	plan := planFor(t, func(vmi *v1.VirtualMachineInstance) {
		addInterface(vmi, bridged("flat"), v1.NetworkSource{Multus: &v1.MultusNetwork{NetworkName: "flat", Default: true}})
	})
	results := ensure(t, w, plan)
	if got := results["flat"]; got.Tap != "tap0" || got.MAC != podMAC.String() {
		t.Errorf("the result is %+v", got)
	}
	w.connectGuest(t, podMAC)
	address(t, w.guest, "nic0", "10.1.0.5/24")
	expectReach(t, w.peer, "10.1.0.5:8080", w.guest, "10.1.0.5:8080", "10.1.0.1")
}

// An error names a network that Multus has not attached, and no interface is returned.
func TestMissingInterface(t *testing.T) {
	for name, c := range map[string]struct {
		remove, hint string
	}{
		"the Pod's":    {"eth0", "network plugin"},
		"one of two":   {redPod, "Install Multus"},
		"the first of": {bluePod, "Install Multus"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSecondaryWorld(t)
			inside(t, w.pod, func() error {
				link, err := mustFind(c.remove)
				if err != nil {
					return err
				}
				return netlink.LinkDel(link)
			})
			results, err := Ensure(context.Background(), w.pod, secondaryPlan(t))
			var missing *plans.MissingInterfaceError
			if !errors.As(err, &missing) || missing.Name != c.remove || results != nil {
				t.Fatalf("got %v, %v", results, err)
			}
			if !strings.Contains(err.Error(), c.remove) || !strings.Contains(err.Error(), c.hint) {
				t.Errorf("the error is %q", err)
			}
		})
	}
}
