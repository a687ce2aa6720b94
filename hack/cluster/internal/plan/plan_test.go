// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestNew(t *testing.T) {
	options := Defaults()
	options.Nodes = 2
	got, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	want := []Node{
		{
			Name: "node1", IP: netip.MustParseAddr("10.200.0.11"),
			PodCIDR: netip.MustParsePrefix("10.244.1.0/24"), PodGateway: netip.MustParseAddr("10.244.1.1"),
			Link: "vireo-node1", Cgroup: "/vireo-cluster/node1", SystemCgroup: "/vireo-cluster/node1/system",
		},
		{
			Name: "node2", IP: netip.MustParseAddr("10.200.0.12"),
			PodCIDR: netip.MustParsePrefix("10.244.2.0/24"), PodGateway: netip.MustParseAddr("10.244.2.1"),
			Link: "vireo-node2", Cgroup: "/vireo-cluster/node2", SystemCgroup: "/vireo-cluster/node2/system",
		},
	}
	if diff := cmp.Diff(want, got.Nodes, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	for what, pair := range map[string][2]string{
		"host": {got.Host.String(), "10.200.0.1"},
		"api":  {got.APIService.String(), "10.96.0.1"},
		"dns":  {got.DNSService.String(), "10.96.0.10"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %s, want %s", what, pair[0], pair[1])
		}
	}
}

func TestInterfaceNamesFitTheKernel(t *testing.T) {
	options := Defaults()
	options.Nodes = MaxNodes
	p, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range p.Nodes {
		// IFNAMSIZ is 16 with the closing zero.
		if len(n.Link) > 15 {
			t.Errorf("interface name %q is longer than 15 bytes", n.Link)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	tests := map[string]struct {
		change func(*Options)
		want   string
	}{
		"no node":       {func(o *Options) { o.Nodes = 0 }, "0 nodes"},
		"too many":      {func(o *Options) { o.Nodes = MaxNodes + 1 }, "21 nodes"},
		"a wide range":  {func(o *Options) { o.NodeCIDR = netip.MustParsePrefix("10.0.0.0/8") }, "not an IPv4 /24"},
		"IPv6":          {func(o *Options) { o.PodCIDR = netip.MustParsePrefix("fd00::/16") }, "not an IPv4 /16"},
		"nothing":       {func(o *Options) { o.PodCIDR = netip.Prefix{} }, "not an IPv4 /16"},
		"ranges meet":   {func(o *Options) { o.ServiceCIDR = o.PodCIDR }, "overlaps the Pod range"},
		"nodes in Pods": {func(o *Options) { o.NodeCIDR = netip.MustParsePrefix("10.244.7.0/24") }, "overlaps the node range"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			options := Defaults()
			tt.change(&options)
			if _, err := New(options); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

func TestConflict(t *testing.T) {
	p, err := New(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	free := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("fd00::/64")}
	if err := p.Conflict(free); err != nil {
		t.Errorf("no overlap, yet: %v", err)
	}
	if err := p.Conflict([]netip.Prefix{netip.MustParsePrefix("10.96.4.0/24")}); err == nil {
		t.Error("a route into the Service range was not seen")
	}
}
