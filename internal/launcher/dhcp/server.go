// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package dhcp serves DHCP to the guest on the bridges that virt-broker creates in the Pod. It only needs permission to
// bind to ports below 1024.
package dhcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/podnet"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// Bindings that this server serves.
const (
	// Masquerade gives the guest an address of a private network behind the Pod's address.
	Masquerade = "masquerade"
	// Bridge gives the guest the address of the Pod's interface.
	Bridge = "bridge"
)

// InterfaceUsage is the help text of a flag that ParseInterface parses.
const InterfaceUsage = "an interface of the guest as NAME,BINDING[,IPv4 CIDR[,IPv6 CIDR]] (repeatable): NAME is the Pod's interface or\n" +
	"the VMI's network, BINDING is masquerade or bridge; masquerade needs a CIDR, whose first address is the gateway and second the guest"

// Interface is one interface of the guest.
type Interface struct {
	// Name is the Pod's interface, or the VMI's network that it belongs to.
	Name string
	// Binding is Masquerade or Bridge.
	Binding string
	// IPv4 and IPv6 are the guest's private networks with masquerade; IPv6 may be absent.
	IPv4, IPv6 netip.Prefix
	// Options are added to the replies of DHCPv4.
	Options []Option
}

// ParseInterface parses the format that InterfaceUsage describes.
func ParseInterface(text string) (Interface, error) {
	fields := strings.Split(text, ",")
	if len(fields) < 2 || len(fields) > 4 || fields[0] == "" {
		return Interface{}, errors.New("want NAME,BINDING[,IPv4 CIDR[,IPv6 CIDR]]")
	}
	out := Interface{Name: fields[0], Binding: fields[1]}
	if out.Binding != Masquerade && out.Binding != Bridge {
		return Interface{}, fmt.Errorf("the binding is %q: want %s or %s", out.Binding, Masquerade, Bridge)
	}
	for i, prefix := range []*netip.Prefix{&out.IPv4, &out.IPv6} {
		if i+2 >= len(fields) || fields[i+2] == "" {
			continue
		}
		parsed, err := netip.ParsePrefix(fields[i+2])
		if err != nil {
			return Interface{}, err
		}
		if parsed.Addr().Is4() != (i == 0) {
			return Interface{}, fmt.Errorf("%s is of the other IP family: IPv4 comes first", parsed)
		}
		if host := parsed.Addr().BitLen() - parsed.Bits(); out.Binding == Masquerade && host < 2 {
			return Interface{}, fmt.Errorf("%s has no room for a gateway and a guest: want a prefix of at most %d bits",
				parsed, parsed.Addr().BitLen()-2)
		}
		*prefix = parsed
	}
	if out.Binding == Masquerade && !out.IPv4.IsValid() && !out.IPv6.IsValid() {
		return Interface{}, errors.New("masquerade needs an IPv4 or an IPv6 CIDR")
	}
	return out, nil
}

// Gateway returns the first address of a private network, the bridge's.
func Gateway(network netip.Prefix) netip.Addr { return network.Masked().Addr().Next() }

// Guest returns the second address of a private network, the guest's.
func Guest(network netip.Prefix) netip.Addr { return Gateway(network).Next() }

// match returns the guest's interface and the name of the Pod's interface that belong to a bridge.
func match(bridge string, interfaces []Interface, snapshot *podnet.Snapshot) (Interface, string, bool) {
	known := func(name string) bool {
		_, ok := snapshot.Interfaces[name]
		return ok
	}
	pod, ok := launcherpod.InterfaceOfBridge(bridge, known)
	if !ok {
		return Interface{}, "", false
	}
	for _, i := range interfaces {
		if i.Name == pod || launcherpod.SecondaryInterface(i.Name) == pod {
			return i, pod, true
		}
	}
	if pod != launcherpod.PrimaryInterface {
		return Interface{}, "", false
	}
	// The Pod network may have any name in the VMI; interfaces on other networks have a name derived from the network's.
	for _, i := range interfaces {
		if !known(i.Name) && !known(launcherpod.SecondaryInterface(i.Name)) {
			return i, pod, true
		}
	}
	return Interface{}, "", false
}

// Limits for the content of the Pod's resolv.conf. A DHCP option has at most 255 bytes (RFC 2132), and a resolver uses
// at most three servers (resolv.conf(5)).
const (
	maxServers     = 3
	maxSearchBytes = 200
)

// bridgeServer identifies the server if the bridge has no address in the guest's network. Source: KubeVirt.
var bridgeServer = netip.MustParseAddr("169.254.75.10")

// Lease is the configuration of one interface of the guest. There is one guest, so there is one lease.
type Lease struct {
	// Address is the guest's address with the length of its network's prefix; not valid without IPv4.
	Address netip.Prefix
	// Server identifies this server.
	Server netip.Addr
	// Router is the default gateway; not valid if there is none.
	Router netip.Addr
	// Routes are all routes, including the default one; empty if Router suffices.
	Routes []podnet.Route
	// DNS has the name servers of IPv4 and the search list.
	DNS podnet.DNS
	// MTU is the interface's MTU; 0 means unspecified.
	MTU int
	// Hostname is the guest's host name.
	Hostname string
	// IPv6 is the guest's IPv6 address; not valid without one.
	IPv6 netip.Addr
	// DNS6 are the name servers of IPv6.
	DNS6 []netip.Addr
	// Options are further options of DHCPv4.
	Options []Option
}

// newLease returns the lease for a guest's interface, given the Pod's interface.
func newLease(i Interface, podInterface string, snapshot *podnet.Snapshot) (Lease, error) {
	pod, ok := snapshot.Interfaces[podInterface]
	if !ok {
		return Lease{}, fmt.Errorf("the Pod had no interface %s when the launcher started", podInterface)
	}
	lease := Lease{MTU: pod.MTU, Hostname: snapshot.Hostname, Options: i.Options}
	lease.DNS.Search = capSearch(snapshot.DNS.Search)
	for _, server := range snapshot.DNS.Servers {
		switch {
		case server.Is4() && len(lease.DNS.Servers) < maxServers:
			lease.DNS.Servers = append(lease.DNS.Servers, server)
		case server.Is6() && len(lease.DNS6) < maxServers:
			lease.DNS6 = append(lease.DNS6, server)
		}
	}
	if i.Binding == Masquerade {
		lease.masquerade(i, pod)
	} else {
		lease.bridge(pod)
	}
	return lease, nil
}

func (l *Lease) masquerade(i Interface, pod podnet.Interface) {
	if i.IPv4.IsValid() {
		l.Address = netip.PrefixFrom(Guest(i.IPv4), i.IPv4.Bits())
		l.Server = Gateway(i.IPv4)
		l.Router = l.Server
	}
	if _, ok := pod.IPv6(); ok && i.IPv6.IsValid() {
		l.IPv6 = Guest(i.IPv6)
	}
}

func (l *Lease) bridge(pod podnet.Interface) {
	address, ok := pod.IPv4()
	if !ok {
		return // A network without IPv4: another DHCP server on it may serve the guest.
	}
	l.Address, l.Server = address, bridgeServer
	onlyDefault := true
	for _, route := range pod.Routes {
		if !route.Destination.Addr().Is4() {
			continue
		}
		l.Routes = append(l.Routes, route)
		if route.Destination.Bits() != 0 {
			onlyDefault = false
			continue
		}
		if route.Gateway.IsValid() && !l.Router.IsValid() {
			l.Router = route.Gateway
		}
		// A gateway outside of the network needs its own route, which only option 121 can contain.
		onlyDefault = onlyDefault && address.Masked().Contains(route.Gateway)
	}
	if onlyDefault {
		l.Routes = nil
	}
}

func capSearch(domains []string) []string {
	size := 0
	var out []string
	for _, domain := range domains {
		size += len(domain) + 2 // In the packet, each label has a length, and the name a terminator.
		if size > maxSearchBytes {
			break
		}
		out = append(out, domain)
	}
	return out
}

func toIPs(addresses []netip.Addr) []net.IP {
	out := make([]net.IP, 0, len(addresses))
	for _, address := range addresses {
		out = append(out, address.AsSlice())
	}
	return out
}

// OptionUsage is the help text of a flag that AddOptions parses.
const OptionUsage = "an option for the replies of DHCPv4 as NAME,CODE,TEXT (repeatable): NAME is that of an --interface, CODE is 42 (addresses\n" +
	"of NTP servers), 66 (name of the TFTP server), 67 (name of the boot file) or 224 to 254, TEXT is escaped as in a URL's query"

// Option is an encoded DHCPv4 option.
type Option struct {
	// Code is its number.
	Code uint8
	// Value is its content.
	Value []byte
}

// AddOptions parses flags in the format that OptionUsage describes and adds each option to its interface.
func AddOptions(interfaces []Interface, flags []string) error {
	for _, flag := range flags {
		parsed, err := launcherpod.ParseDHCPOption(flag)
		if err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
		index := slices.IndexFunc(interfaces, func(i Interface) bool { return i.Name == parsed.Interface })
		if index < 0 {
			return fmt.Errorf("%s: there is no --interface %s", flag, parsed.Interface)
		}
		option, err := newOption(parsed)
		if err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
		interfaces[index].Options = append(interfaces[index].Options, option)
	}
	return nil
}

func newOption(parsed launcherpod.DHCPOption) (Option, error) {
	option := Option{Code: parsed.Code, Value: []byte(parsed.Text)}
	if parsed.Code == launcherpod.NTPServersOption {
		option.Value = nil
		for text := range strings.FieldsSeq(parsed.Text) {
			server, err := netip.ParseAddr(text)
			if err != nil || !server.Is4() {
				return option, fmt.Errorf("%q is no IPv4 address", text)
			}
			option.Value = append(option.Value, server.AsSlice()...)
		}
	}
	if len(option.Value) > launcherpod.MaxOptionValue {
		return option, fmt.Errorf("the value has %d bytes: an option has at most %d", len(option.Value),
			launcherpod.MaxOptionValue)
	}
	return option, nil
}

// resubscribeDelay is the delay before watching links again after the kernel dropped the subscription.
const resubscribeDelay = 100 * time.Millisecond

// Serve serves DHCP on each bridge that belongs to one of the interfaces while the bridge exists, until ctx is done.
func Serve(ctx context.Context, interfaces []Interface, snapshot *podnet.Snapshot) error {
	if len(interfaces) == 0 {
		return nil
	}
	servers := &servers{interfaces: interfaces, snapshot: snapshot, running: map[int]context.CancelFunc{}}
	defer servers.stopAll()
	for {
		err := servers.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		logr.FromContextOrDiscard(ctx).Info("Watching for bridges again", "reason", err.Error())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(resubscribeDelay):
		}
	}
}

// servers are the running servers by the index of their bridge.
type servers struct {
	interfaces []Interface
	snapshot   *podnet.Snapshot
	running    map[int]context.CancelFunc
}

func (s *servers) watch(ctx context.Context) error {
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	// The library closes the channel when it stops, and passes the reason to the callback.
	failed := make(chan error, 1)
	err := netlink.LinkSubscribeWithOptions(updates, done, netlink.LinkSubscribeOptions{
		ErrorCallback: func(err error) {
			select {
			case failed <- err:
			default:
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch the Pod's links: %w", err)
	}
	// After subscribing, so that no link is missed. The library's option for this needs CAP_NET_ADMIN, as it also sends
	// the request to the multicast group.
	existing, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list the Pod's links: %w", err)
	}
	for _, link := range existing {
		s.appeared(ctx, link)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case update, open := <-updates:
			if !open {
				select {
				case err := <-failed:
					return fmt.Errorf("watch the Pod's links: %w", err)
				default:
					return errors.New("watch the Pod's links: the subscription was closed")
				}
			}
			s.handle(ctx, update)
		}
	}
}

func (s *servers) handle(ctx context.Context, update netlink.LinkUpdate) {
	attrs := update.Attrs()
	// There are messages of family AF_BRIDGE for bridge ports, also when a port is only removed from a bridge.
	if update.Family == unix.AF_BRIDGE {
		return
	}
	if update.Header.Type != unix.RTM_DELLINK {
		s.appeared(ctx, update.Link)
		return
	}
	if stop, running := s.running[attrs.Index]; running {
		stop()
		delete(s.running, attrs.Index)
	}
}

func (s *servers) appeared(ctx context.Context, link netlink.Link) {
	if _, running := s.running[link.Attrs().Index]; !running && link.Type() == "bridge" {
		s.start(ctx, link)
	}
}

func (s *servers) start(ctx context.Context, bridge netlink.Link) {
	name := bridge.Attrs().Name
	guestInterface, podInterface, ok := match(name, s.interfaces, s.snapshot)
	if !ok {
		return
	}
	log := logr.FromContextOrDiscard(ctx).WithValues("bridge", name)
	lease, err := newLease(guestInterface, podInterface, s.snapshot)
	if err != nil {
		log.Error(err, "No DHCP on this bridge")
		return
	}
	ctx, cancel := context.WithCancel(logr.NewContext(ctx, log))
	s.running[bridge.Attrs().Index] = cancel
	// With masquerade only the guest is on the bridge; with the bridge binding the other port leads to a network.
	var allowed func(net.HardwareAddr) bool
	if guestInterface.Binding == Bridge {
		allowed = func(mac net.HardwareAddr) bool { return onGuestPort(bridge.Attrs().Index, mac) }
	}
	if lease.Address.IsValid() {
		go lease.serve4(ctx, name, allowed)
	}
	if lease.IPv6.IsValid() {
		go lease.serve6(ctx, bridge)
	}
}

func (s *servers) stopAll() {
	for _, stop := range s.running {
		stop()
	}
}
