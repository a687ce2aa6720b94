// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// FuzzRules checks that for any networks and ports in a spec, the rules redirect connections to the guest only, on the
// listed ports only, and are deterministic.
func FuzzRules(f *testing.F) {
	f.Add("", "", []byte(nil), false, false)
	f.Add("10.10.0.0/16", "fd00::/64", []byte(`[{"port":80},{"port":53,"protocol":"udp"},{"port":80,"protocol":"TCP"}]`), true, false)
	f.Add("::ffff:10.1.0.0/112", "::/0", []byte(`[{"port":65536},{"port":-1}]`), false, true)
	pod := networkapi.Link{Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.7/24"),
		netip.MustParsePrefix("fd00:1::7/64")}}
	f.Fuzz(func(t *testing.T, ipv4, ipv6 string, listed []byte, migrationTarget, sidecar bool) {
		spec := v1.Interface{Name: "default",
			InterfaceBindingMethod: v1.InterfaceBindingMethod{Masquerade: &v1.InterfaceMasquerade{}}}
		if json.Unmarshal(listed, &spec.Ports) != nil {
			return
		}
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "fedora"}}
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{spec}
		vmi.Spec.Networks = []v1.Network{{
			Name: "default", NetworkSource: v1.NetworkSource{Pod: &v1.PodNetwork{VMNetworkCIDR: ipv4, VMIPv6NetworkCIDR: ipv6}},
		}}
		plan, err := NewPlan(vmi)
		if err != nil {
			return
		}
		planned := plan.Interfaces[0]
		planned.MigrationTarget, planned.Sidecar = migrationTarget, sidecar
		again, err := NewPlan(vmi.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		again.Interfaces[0].MigrationTarget, again.Interfaces[0].Sidecar = migrationTarget, sidecar
		rules := Rules(&planned, pod)
		if diff := cmp.Diff(rules, Rules(&again.Interfaces[0], pod), cmp.Comparer(equalAddresses),
			cmp.Comparer(equalPrefixes)); diff != "" {
			t.Errorf("the rules are not deterministic: %s", diff)
		}
		for _, ports := range planned.Ports {
			if ports.First == 0 || ports.Last < ports.First {
				t.Errorf("ports %+v", ports)
			}
		}
		if (len(spec.Ports) == 0) != (len(planned.Ports) == 0) {
			t.Errorf("%d ports are listed, and %d planned", len(spec.Ports), len(planned.Ports))
		}
		for _, rule := range rules {
			expectRule(t, rule, &planned)
		}
	})
}

func equalAddresses(a, b netip.Addr) bool { return a == b }

func equalPrefixes(a, b netip.Prefix) bool { return a == b }

// expectRule checks that a rule with a new destination redirects to the guest, and is for ports if any are listed.
func expectRule(t *testing.T, r networkapi.Rule, planned *Interface) {
	t.Helper()
	if r.Do != networkapi.To {
		return
	}
	to := guest(planned.IPv4)
	if r.IPv6 {
		to = guest(planned.IPv6)
	}
	if r.Target != to {
		t.Errorf("%+v goes to %s, and the guest has %s", r, r.Target, to)
	}
	if bypasses := planned.Sidecar && r.Chain == networkapi.Prerouting; bypasses != (len(r.Ports) > 0) {
		t.Errorf("%+v has ports of its own: %t", r, len(r.Ports) > 0)
	} else if !bypasses && r.Listed != (len(planned.Ports) > 0) {
		t.Errorf("%+v is for ports: %t, and %d are listed", r, r.Listed, len(planned.Ports))
	}
	for _, ports := range r.Ports {
		if len(planned.Ports) > 0 && !slices.ContainsFunc(planned.Ports, func(p networkapi.PortRange) bool {
			return p.Protocol == ports.Protocol && p.First <= ports.First && ports.Last <= p.Last
		}) {
			t.Errorf("%+v forwards ports that are not listed", r)
		}
	}
}

func TestGuestsAddress(t *testing.T) {
	if got := guest(netip.MustParsePrefix("192.168.7.9/24")).String(); got != "192.168.7.2" {
		t.Errorf("the guest is %s", got)
	}
}

func ports(protocol string, first, last uint16) networkapi.PortRange {
	return networkapi.PortRange{Protocol: protocol, First: first, Last: last}
}

func TestPortsBypassingTheSidecar(t *testing.T) {
	for name, c := range map[string]struct{ forwarded, want []networkapi.PortRange }{
		"all":         {nil, []networkapi.PortRange{ports("TCP", 22, 22), ports("TCP", 49152, 49153)}},
		"others":      {[]networkapi.PortRange{ports("TCP", 80, 443), ports("UDP", 1, 65535)}, nil},
		"SSH":         {[]networkapi.PortRange{ports("TCP", 22, 22), ports("TCP", 80, 80)}, []networkapi.PortRange{ports("TCP", 22, 22)}},
		"part of one": {[]networkapi.PortRange{ports("TCP", 20, 23), ports("TCP", 49153, 50000)}, []networkapi.PortRange{ports("TCP", 22, 22), ports("TCP", 49153, 49153)}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, bypassingSidecar(c.forwarded)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
