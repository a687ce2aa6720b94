// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	plans "github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// Names of virt-handler's package, which decides what the steps are.
type (
	Plan      = plans.Plan
	Interface = plans.Interface
	PortRange = networkapi.PortRange
)

// Ensure does what virt-handler does to connect a guest.
func Ensure(ctx context.Context, namespace *Namespace, plan Plan) (map[string]plans.Connected, error) {
	links, err := throughJSON(Links(namespace))
	if err != nil {
		return nil, err
	}
	steps, connected, err := plans.Connect(plan, links)
	if err == nil {
		err = change(ctx, namespace, steps)
	}
	if err != nil {
		return nil, err
	}
	return connected, nil
}

// Forward does what virt-handler does after a migration.
func Forward(ctx context.Context, namespace *Namespace, plan Plan) error {
	links, err := throughJSON(Links(namespace))
	if err != nil {
		return err
	}
	steps, err := plans.Forward(plan, links)
	if err != nil {
		return err
	}
	return change(ctx, namespace, steps)
}

func change(ctx context.Context, namespace *Namespace, steps []networkapi.Step) error {
	sent, err := throughJSON(steps, nil)
	if err == nil {
		err = Check(sent)
	}
	if err != nil {
		return err
	}
	return Change(ctx, namespace, sent)
}

// throughJSON returns what the other process receives.
func throughJSON[T any](value T, err error) (received T, _ error) {
	if err != nil {
		return received, err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return received, err
	}
	return received, brokerapi.Decode(text, &received)
}

// mustFind returns a link by name.
func mustFind(name string) (netlink.Link, error) { return netlink.LinkByName(name) }

func addAddress(name, prefix string) error {
	link, err := mustFind(name)
	if err != nil {
		return err
	}
	step := &networkapi.Step{Do: networkapi.AddAddress, Address: netip.MustParsePrefix(prefix)}
	return changeLink(step, link)
}

// newNamespace creates an unnamed network namespace that exists as long as the test.
func newNamespace(t *testing.T) *Namespace {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	namespace := &Namespace{}
	err := podprocess.OnDisposableThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		namespace.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = namespace.Close() })
	inside(t, namespace, func() error { return setUp("lo") })
	return namespace
}

func inside(t *testing.T, namespace *Namespace, do func() error) {
	t.Helper()
	if err := namespace.Do(do); err != nil {
		t.Fatal(err)
	}
}

func setUp(name string) error {
	link, err := mustFind(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// cable connects two namespaces.
func cable(t *testing.T, from *Namespace, fromName string, mac net.HardwareAddr, to *Namespace, toName string) {
	t.Helper()
	inside(t, from, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr = fromName, podMTU, mac
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerMTU, veth.PeerNamespace = toName, podMTU, netlink.NsFd(int(to.file.Fd()))
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return setUp(fromName)
	})
	inside(t, to, func() error { return setUp(toName) })
}

func address(t *testing.T, namespace *Namespace, name, prefix string) {
	t.Helper()
	inside(t, namespace, func() error { return addAddress(name, prefix) })
}

func defaultRoute(t *testing.T, namespace *Namespace, gateway string) {
	t.Helper()
	inside(t, namespace, func() error {
		ip := net.ParseIP(gateway)
		all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
		if ip.To4() == nil {
			all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		}
		return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: ip})
	})
}

const podMTU = 1400

var podMAC = net.HardwareAddr{0x0a, 0, 0, 0, 0, 5}

// world has the network namespaces of a Pod, a peer on its network, and a guest.
type world struct{ pod, peer, guest *Namespace }

func newWorld(t *testing.T) world {
	t.Helper()
	w := world{pod: newNamespace(t), peer: newNamespace(t), guest: newNamespace(t)}
	cable(t, w.pod, "eth0", podMAC, w.peer, "peer0")
	address(t, w.pod, "eth0", "10.1.0.5/24")
	address(t, w.pod, "eth0", "fd01::5/64")
	address(t, w.peer, "peer0", "10.1.0.1/24")
	address(t, w.peer, "peer0", "fd01::1/64")
	defaultRoute(t, w.pod, "10.1.0.1")
	return w
}

// connectGuest connects the guest to the bridge by a veth pair, in place of QEMU and the tap.
func (w world) connectGuest(t *testing.T, mac net.HardwareAddr) {
	t.Helper()
	w.connectGuestTo(t, mac, "k6t-eth0", "cable0")
}

// connectGuestTo connects the guest to a bridge, by a port with the given name.
func (w world) connectGuestTo(t *testing.T, mac net.HardwareAddr, to, by string) {
	t.Helper()
	cable(t, w.guest, "nic0", mac, w.pod, by)
	inside(t, w.pod, func() error {
		port, err := mustFind(by)
		if err != nil {
			return err
		}
		bridge, err := mustFind(to)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(port, bridge)
	})
}

// dump returns everything that Ensure could change, as text.
func dump(t *testing.T, namespace *Namespace) string {
	t.Helper()
	var lines []string
	inside(t, namespace, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			a := link.Attrs()
			lines = append(lines, fmt.Sprintf("link %d %s %s %s mtu %d master %d up %t", a.Index, a.Name, link.Type(),
				a.HardwareAddr, a.MTU, a.MasterIndex, a.Flags&net.FlagUp != 0))
			addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, address := range addresses {
				if address.Scope == unix.RT_SCOPE_UNIVERSE {
					lines = append(lines, fmt.Sprintf("address %s %s", a.Name, address.IPNet))
				}
			}
		}
		rules, err := dumpRules()
		lines = append(lines, rules...)
		if err != nil {
			return err
		}
		procfs, err := podprocess.MountKernelFS("proc")
		if err != nil {
			return err
		}
		defer func() { _ = procfs.Close() }()
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv4/ip_unprivileged_port_start"} {
			value, err := podprocess.Read(procfs, "sys/net/"+name)
			if err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("setting %s %s", name, strings.TrimSpace(value)))
		}
		return nil
	})
	return strings.Join(lines, "\n")
}

func dumpRules() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, chain := range chains {
		rules, err := conn.GetRules(chain.Table, chain)
		if err != nil {
			return nil, err
		}
		for _, rule := range rules {
			lines = append(lines,
				fmt.Sprintf("rule %d %s %s %d %s", chain.Table.Family, chain.Table.Name, chain.Name, rule.Handle, rule.UserData))
		}
	}
	slices.Sort(lines)
	return lines, nil
}

func deleteRules() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.DelTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: natTable})
	return conn.Flush()
}
