// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package podnet records the Pod's network when the launcher starts. The bridge binding moves the Pod's address to the
// guest, and the kernel then removes the routes: the DHCP server uses the recorded ones.
package podnet

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Snapshot is the state of the Pod's network at one time.
type Snapshot struct {
	// Hostname is the Pod's host name.
	Hostname string
	// Interfaces are the Pod's interfaces by name, without the loopback.
	Interfaces map[string]Interface
	// DNS is the content of the Pod's resolv.conf.
	DNS DNS
}

// Interface is one interface of the Pod.
type Interface struct {
	// MAC is its hardware address.
	MAC net.HardwareAddr
	// MTU is its MTU.
	MTU int
	// Addresses are its addresses of global scope with their prefix lengths.
	Addresses []netip.Prefix
	// Routes are the routes through it, without those that the kernel derives from the addresses.
	Routes []Route
}

// Route is a route through an interface.
type Route struct {
	// Destination is the network; 0.0.0.0/0 or ::/0 is the default route.
	Destination netip.Prefix
	// Gateway is the next hop; it is not valid when the destination is on the link.
	Gateway netip.Addr
}

// DNS is the configuration of the resolver.
type DNS struct {
	// Servers are the name servers in order.
	Servers []netip.Addr
	// Search are the search domains in order.
	Search []string
}

// WithSubdomain returns the configuration with a Pod's subdomain first in the search list, as in KubeVirt: Kubernetes
// does not add it, and the guest could not resolve its own full name. The subdomain is added to the longest domain of
// Services, which is the namespace's.
func (d DNS) WithSubdomain(subdomain string) DNS {
	if subdomain == "" {
		return d
	}
	namespace := ""
	for _, domain := range d.Search {
		if strings.Contains(domain, ".svc.") && len(domain) > len(namespace) {
			namespace = domain
		}
	}
	if namespace == "" || strings.HasPrefix(namespace, subdomain+".") {
		return d
	}
	d.Search = append([]string{subdomain + "." + namespace}, d.Search...)
	return d
}

// IPv4 returns the interface's first IPv4 address.
func (i Interface) IPv4() (netip.Prefix, bool) { return i.first(netip.Addr.Is4) }

// IPv6 returns the interface's first IPv6 address.
func (i Interface) IPv6() (netip.Prefix, bool) { return i.first(netip.Addr.Is6) }

func (i Interface) first(want func(netip.Addr) bool) (netip.Prefix, bool) {
	for _, prefix := range i.Addresses {
		if want(prefix.Addr()) {
			return prefix, true
		}
	}
	return netip.Prefix{}, false
}

// TakeSnapshot reads the state of the caller's network namespace, and a resolv.conf.
func TakeSnapshot(resolvConf string) (*Snapshot, error) {
	snapshot := &Snapshot{Interfaces: map[string]Interface{}}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the Pod's interfaces: %w", err)
	}
	for _, link := range links {
		if link.Attrs().Flags&net.FlagLoopback != 0 {
			continue
		}
		seen, err := readInterface(link)
		if err != nil {
			return nil, fmt.Errorf("read the Pod's interface %s: %w", link.Attrs().Name, err)
		}
		snapshot.Interfaces[link.Attrs().Name] = seen
	}
	if snapshot.Hostname, err = os.Hostname(); err != nil {
		return nil, fmt.Errorf("read the Pod's host name: %w", err)
	}
	file, err := os.Open(resolvConf) //nolint:gosec // a path of the launcher's own choice
	if err != nil {
		return nil, fmt.Errorf("read the Pod's name servers: %w", err)
	}
	defer func() { _ = file.Close() }()
	snapshot.DNS, err = ParseResolvConf(file)
	return snapshot, err
}

func readInterface(link netlink.Link) (Interface, error) {
	out := Interface{MAC: slices.Clone(link.Attrs().HardwareAddr), MTU: link.Attrs().MTU}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return out, fmt.Errorf("list addresses: %w", err)
	}
	for _, address := range addresses {
		ip, ok := netip.AddrFromSlice(address.IP)
		if !ok || address.Scope != unix.RT_SCOPE_UNIVERSE {
			continue
		}
		ones, _ := address.Mask.Size()
		out.Addresses = append(out.Addresses, netip.PrefixFrom(ip.Unmap(), ones))
	}
	routes, err := netlink.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return out, fmt.Errorf("list routes: %w", err)
	}
	for _, route := range routes {
		if converted, ok := convertRoute(route); ok {
			out.Routes = append(out.Routes, converted)
		}
	}
	return out, nil
}

// convertRoute converts a route. It returns false for the kernel's own routes and for routes that are not unicast.
func convertRoute(route netlink.Route) (Route, bool) {
	if route.Protocol == unix.RTPROT_KERNEL || route.Type != unix.RTN_UNICAST {
		return Route{}, false
	}
	var out Route
	if route.Gw != nil {
		gateway, _ := netip.AddrFromSlice(route.Gw)
		out.Gateway = gateway.Unmap()
	}
	if route.Dst == nil {
		if !out.Gateway.IsValid() {
			return Route{}, false
		}
		out.Destination = netip.PrefixFrom(zero(out.Gateway), 0)
		return out, true
	}
	ip, ok := netip.AddrFromSlice(route.Dst.IP)
	if !ok {
		return Route{}, false
	}
	ones, _ := route.Dst.Mask.Size()
	out.Destination = netip.PrefixFrom(ip.Unmap(), ones)
	return out, true
}

func zero(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// ParseResolvConf parses the format of resolv.conf(5). It ignores unknown lines.
func ParseResolvConf(r io.Reader) (DNS, error) {
	var dns DNS
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if server, err := netip.ParseAddr(fields[1]); err == nil {
				dns.Servers = append(dns.Servers, server.WithZone(""))
			}
		case "search":
			dns.Search = fields[1:] // the last one counts
		case "domain":
			dns.Search = fields[1:2]
		}
	}
	if err := lines.Err(); err != nil {
		return dns, fmt.Errorf("read resolv.conf: %w", err)
	}
	return dns, nil
}
