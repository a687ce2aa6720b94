// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"encoding/json"
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/nftables/expr"

	v1 "github.com/vireo-project/vireo/api/v1"
	plans "github.com/vireo-project/vireo/internal/agent/network"
)

// FuzzRules checks that for any networks and ports in a spec, the rules redirect connections to the guest only, on the listed
// ports only, and are deterministic.
func FuzzRules(f *testing.F) {
	f.Add("", "", []byte(nil), false)
	f.Add("10.10.0.0/16", "fd00::/64", []byte(`[{"port":80},{"port":53,"protocol":"udp"},{"port":80,"protocol":"TCP"}]`), true)
	f.Add("::ffff:10.1.0.0/112", "::/0", []byte(`[{"port":65536},{"port":-1}]`), false)
	f.Fuzz(func(t *testing.T, ipv4, ipv6 string, listed []byte, migrationTarget bool) {
		spec := masqueraded()
		if json.Unmarshal(listed, &spec.Ports) != nil {
			return
		}
		vmi := vmiWith(func(vmi *v1.VirtualMachineInstance) {
			addInterface(vmi, spec, v1.NetworkSource{Pod: &v1.PodNetwork{VMNetworkCIDR: ipv4, VMIPv6NetworkCIDR: ipv6}})
		})
		plan, err := plans.NewPlan(vmi)
		if err != nil {
			return
		}
		if again, err := plans.NewPlan(vmi.DeepCopy()); err != nil || digestOf(again, migrationTarget) != digestOf(plan, migrationTarget) {
			t.Errorf("the plan is not deterministic (%v)", err)
		}
		planned := plan.Interfaces[0]
		for _, ports := range planned.Ports {
			if ports.First == 0 || ports.Last < ports.First {
				t.Errorf("ports %+v", ports)
			}
		}
		if (len(spec.Ports) == 0) != (len(planned.Ports) == 0) {
			t.Errorf("%d ports are listed, and %d planned", len(spec.Ports), len(planned.Ports))
		}
		planned.MigrationTarget = migrationTarget
		for to, set := range map[netip.Addr]ruleset{guest(planned.IPv4): ipv4Rules(planned, dualStackPod()), guest(planned.IPv6): ipv6Rules(planned, dualStackPod())} {
			for _, chain := range set.chains {
				for _, rule := range chain.rules {
					expectRule(t, rule, to, planned)
				}
			}
		}
	})
}

// dualStackPod returns a Pod with addresses of both families.
func dualStackPod() podState {
	return podState{addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.7/24"), netip.MustParsePrefix("fd00:1::7/64")}}
}

func digestOf(plan Plan, migrationTarget bool) string {
	if migrationTarget {
		plan = plans.ForMigrationTarget(plan)
	}
	return ipv4Rules(plan.Interfaces[0], dualStackPod()).digest() + ipv6Rules(plan.Interfaces[0], dualStackPod()).digest()
}

// expectRule checks that a rule with a destination NAT redirects to the guest, and matches ports if any are listed.
func expectRule(t *testing.T, r rule, to netip.Addr, planned Interface) {
	t.Helper()
	var target netip.Addr
	ranged := false
	for _, e := range r.exprs {
		switch e := e.(type) {
		case *expr.Immediate:
			target, _ = netip.AddrFromSlice(e.Data)
		case *expr.Range:
			ranged = true
		case *expr.NAT:
			if e.Type != expr.NATTypeDestNAT {
				continue
			}
			if target != to {
				t.Errorf("%s goes to %s, and the guest has %s", r.text, target, to)
			}
			if ranged != (len(planned.Ports) > 0) {
				t.Errorf("%s is for ports: %t, and %d are listed", r.text, ranged, len(planned.Ports))
			}
		}
	}
	if len(r.text) > math.MaxUint8 || strings.ContainsAny(r.text, "\n\x00") {
		t.Errorf("the text %.300q", r.text)
	}
}
