// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podnet

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestParseResolvConf(t *testing.T) {
	got, err := ParseResolvConf(strings.NewReader(
		"# made by the kubelet\nnameserver 10.96.0.10\nnameserver fe80::1%eth0\nnameserver rubbish\nsearch old\n" +
			"search a.svc.cluster.local svc.cluster.local\noptions ndots:5\n\nnameserver\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := DNS{
		Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fe80::1")},
		Search:  []string{"a.svc.cluster.local", "svc.cluster.local"},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestConvertRoute(t *testing.T) {
	ipnet := func(s string) *net.IPNet { _, n, _ := net.ParseCIDR(s); return n }
	cases := map[string]struct {
		route netlink.Route
		want  string
	}{
		"default":               {netlink.Route{Type: unix.RTN_UNICAST, Gw: net.IPv4(10, 1, 0, 1)}, "0.0.0.0/0 via 10.1.0.1"},
		"default, written out":  {netlink.Route{Type: unix.RTN_UNICAST, Dst: ipnet("0.0.0.0/0"), Gw: net.IPv4(10, 1, 0, 1)}, "0.0.0.0/0 via 10.1.0.1"},
		"default of IPv6":       {netlink.Route{Type: unix.RTN_UNICAST, Gw: net.ParseIP("fd01::1")}, "::/0 via fd01::1"},
		"on the link":           {netlink.Route{Type: unix.RTN_UNICAST, Dst: ipnet("169.254.1.1/32")}, "169.254.1.1/32 via invalid IP"},
		"the kernel's":          {netlink.Route{Type: unix.RTN_UNICAST, Protocol: unix.RTPROT_KERNEL, Dst: ipnet("10.1.0.0/24")}, ""},
		"multicast":             {netlink.Route{Type: unix.RTN_MULTICAST, Dst: ipnet("ff00::/8")}, ""},
		"default without a hop": {netlink.Route{Type: unix.RTN_UNICAST}, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok := convertRoute(c.route)
			text := got.Destination.String() + " via " + got.Gateway.String()
			if !ok {
				text = ""
			}
			if text != c.want {
				t.Errorf("got %q, want %q", text, c.want)
			}
		})
	}
}

func TestWithSubdomain(t *testing.T) {
	search := []string{"svc.cluster.local", "ns.svc.cluster.local", "a-very-long-domain-of-the-node.example.com"}
	for name, tc := range map[string]struct {
		search    []string
		subdomain string
		want      []string
	}{
		"none":                  {search, "", search},
		"below the namespace":   {search, "sites", append([]string{"sites.ns.svc.cluster.local"}, search...)},
		"there already":         {[]string{"sites.ns.svc.cluster.local"}, "sites", []string{"sites.ns.svc.cluster.local"}},
		"another's name":        {[]string{"sites2.svc.cluster.local"}, "sites", []string{"sites.sites2.svc.cluster.local", "sites2.svc.cluster.local"}},
		"no domain of Services": {[]string{"example.com"}, "sites", []string{"example.com"}},
	} {
		t.Run(name, func(t *testing.T) {
			dns := DNS{Search: tc.search}
			if got := dns.WithSubdomain(tc.subdomain).Search; !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if !slices.Equal(dns.Search, tc.search) {
				t.Error("the original list has changed")
			}
		})
	}
}
