// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	plans "github.com/vireo-project/vireo/internal/agent/network"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

func TestCheck(t *testing.T) {
	mac, address := net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.MustParsePrefix("10.0.2.1/24")
	many := func(rules, ports int) networkapi.Step {
		step := networkapi.Step{Do: networkapi.Translate, Ports: make([]PortRange, ports)}
		for i := range step.Ports {
			step.Ports[i] = PortRange{Protocol: "TCP", First: 1, Last: 1}
		}
		for range rules {
			step.Rules = append(step.Rules, networkapi.Rule{Chain: networkapi.Guard, Listed: true, Do: networkapi.Drop})
		}
		return step
	}
	rule := func(change func(*networkapi.Rule)) networkapi.Step {
		rule := networkapi.Rule{
			Chain: networkapi.Prerouting, In: "eth0", Destination: netip.MustParsePrefix("10.1.0.5/32"), Listed: true,
			Ports: []PortRange{{Protocol: "UDP", First: 53, Last: 53}}, Do: networkapi.To,
			Target: netip.MustParseAddr("10.0.2.2"),
		}
		change(&rule)
		return networkapi.Step{Do: networkapi.Translate, Rules: []networkapi.Rule{rule},
			Ports: []PortRange{{Protocol: "TCP", First: 80, Last: 81}}}
	}
	for _, step := range []networkapi.Step{
		{Do: networkapi.AddBridge, Link: "k6t-eth0", MAC: mac}, {Do: networkapi.AddAddress, Link: "k6t-eth0", Address: address},
		{Do: networkapi.Set, Setting: networkapi.ForwardIPv4}, {Do: networkapi.Set, Setting: networkapi.IgnoreARP, Link: "k6t-eth0"},
		{Do: networkapi.Rename, Link: "eth0-pod", Other: "eth0"}, rule(func(*networkapi.Rule) {}), many(8, maxPorts-1),
	} {
		if err := Check([]networkapi.Step{step}); err != nil {
			t.Errorf("%+v: %v", step, err)
		}
	}
	for name, step := range map[string]networkapi.Step{
		"nothing":                     {Link: "eth0"},
		"no link":                     {Do: networkapi.SetUp},
		"the loopback interface":      {Do: networkapi.SetUp, Link: "lo"},
		"a path":                      {Do: networkapi.SetUp, Link: "../all"},
		"a long name":                 {Do: networkapi.SetUp, Link: "interface01234-n"},
		"no hardware address":         {Do: networkapi.AddBridge, Link: "k6t-eth0"},
		"a multicast address":         {Do: networkapi.SetMAC, Link: "k6t-eth0", MAC: net.HardwareAddr{3, 0, 0, 0, 0, 1}},
		"a short address":             {Do: networkapi.SetMAC, Link: "k6t-eth0", MAC: mac[:3]},
		"no address":                  {Do: networkapi.RemoveAddress, Link: "k6t-eth0"},
		"a new name with a slash":     {Do: networkapi.Rename, Link: "eth0", Other: "a/b"},
		"no bridge":                   {Do: networkapi.Attach, Link: "tap0"},
		"another setting":             {Do: networkapi.Set, Setting: "ipv4/ip_default_ttl"},
		"a setting without its link":  {Do: networkapi.Set, Setting: networkapi.IgnoreARP},
		"a setting with a link":       {Do: networkapi.Set, Setting: networkapi.ForwardIPv4, Link: "eth0"},
		"a setting of all links":      {Do: networkapi.Set, Setting: networkapi.IgnoreARP, Link: "all"},
		"another chain":               rule(func(r *networkapi.Rule) { r.Chain = "input" }),
		"another action":              rule(func(r *networkapi.Rule) { r.Do = "queue" }),
		"a link with a wildcard":      rule(func(r *networkapi.Rule) { r.In = "eth*" }),
		"a network of another family": rule(func(r *networkapi.Rule) { r.Destination = netip.MustParsePrefix("fd00::/8") }),
		"an address within another":   rule(func(r *networkapi.Rule) { r.IPv6, r.Target = true, netip.MustParseAddr("::ffff:10.0.2.2") }),
		"an address of a link":        rule(func(r *networkapi.Rule) { r.IPv6, r.Target = true, netip.MustParseAddr("fe80::1%eth0") }),
		"no target":                   rule(func(r *networkapi.Rule) { r.Target = netip.Addr{} }),
		"a protocol":                  rule(func(r *networkapi.Rule) { r.Ports[0].Protocol = "SCTP" }),
		"port 0":                      rule(func(r *networkapi.Rule) { r.Ports[0].First = 0 }),
		"ports in reverse":            rule(func(r *networkapi.Rule) { r.Ports[0].First = 54 }),
		"too many ports":              many(0, maxPorts+1),
		"too many rules":              many(maxRules+1, 0),
		"too many rules with ports":   many(9, maxPorts),
	} {
		if err := Check([]networkapi.Step{{Do: networkapi.SetUp, Link: "eth0"}, step}); brokerapi.CodeOf(
			err) != brokerapi.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Check(make([]networkapi.Step, maxSteps+1)); brokerapi.CodeOf(err) != brokerapi.CodeInvalid {
		t.Errorf("too many steps: %v", err)
	}
}

// The attacker of this test owns virt-handler. What it can do to the interfaces of a Pod shows in this Pod only.
func TestChangesStayInTheNamespace(t *testing.T) {
	w := newWorld(t)
	own := func() []string {
		links, err := netlink.LinkList()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, link := range links {
			names = append(names, link.Attrs().Name+" "+link.Attrs().HardwareAddr.String())
		}
		return names
	}
	before, peer := own(), dump(t, w.peer)
	forwarding, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Fatal(err)
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, step := range []networkapi.Step{
		{Do: networkapi.AddBridge, Link: "bridge0", MAC: mac, MTU: podMTU}, {Do: networkapi.AddTap, Link: "tap9"},
		{Do: networkapi.Attach, Link: "tap9", Other: "bridge0", MTU: podMTU}, {Do: networkapi.Attach, Link: "eth0", Other: "bridge0", MTU: podMTU},
		{Do: networkapi.AddAddress, Link: "eth0", Address: netip.MustParsePrefix("10.1.0.1/24")}, {Do: networkapi.SetMAC, Link: "eth0", MAC: mac},
		{Do: networkapi.Set, Setting: networkapi.ForwardIPv4}, {Do: networkapi.Rename, Link: "eth0", Other: "docker0"},
		{Do: networkapi.Translate, Rules: []networkapi.Rule{{Chain: networkapi.Guard, Do: networkapi.Drop}}},
	} {
		if err := Change(t.Context(), w.pod, []networkapi.Step{step}); err != nil {
			t.Errorf("%s: %v", step.Do, err)
		}
	}
	after := own()
	if len(before) != len(after) {
		t.Fatalf("the links of this process were %v, and are %v", before, after)
	}
	for i := range before {
		if before[i] != after[i] {
			t.Errorf("a link of this process was %s, and is %s", before[i], after[i])
		}
	}
	// The other end of the Pod's cable is down with the Pod's.
	if now, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err != nil || string(now) != string(forwarding) {
		t.Errorf("forwarding was %q, and is %q (%v)", forwarding, now, err)
	}
	if now := dump(t, w.peer); now != peer {
		t.Errorf("the peer had\n%s\nand has\n%s", peer, now)
	}
}

// The attacker of this test owns virt-handler. Links cost memory of the kernel, and time of all that change links on
// the node.
func TestLinksAreLimited(t *testing.T) {
	w := newWorld(t)
	for round := range 2 {
		var steps []networkapi.Step
		for i := range maxLinks {
			steps = append(steps, networkapi.Step{Do: networkapi.AddTap, Link: fmt.Sprintf("tap%d-%d", round, i)})
		}
		if err := Change(t.Context(), w.pod, steps); brokerapi.CodeOf(err) != brokerapi.CodeInvalid {
			t.Errorf("got %v, want a refusal", err)
		}
	}
	if links, err := Links(w.pod); err != nil || len(links) != maxLinks {
		t.Errorf("the Pod has %d links, %v", len(links), err)
	}
}

// The rules are replaced when they differ in ports only, and kept otherwise.
func TestRulesAreReplacedIfTheyDiffer(t *testing.T) {
	w := newWorld(t)
	install := func(ports ...PortRange) string {
		planned := masqueradePlan(t).Interfaces[0]
		planned.Ports = ports
		rules := plans.Rules(&planned, networkapi.Link{Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/24")}})
		step := networkapi.Step{Do: networkapi.Translate, Rules: rules, Ports: ports}
		if err := errors.Join(Check([]networkapi.Step{step}),
			Change(t.Context(), w.pod, []networkapi.Step{step})); err != nil {
			t.Fatal(err)
		}
		return dump(t, w.pod)
	}
	all := install()
	if again := install(); again != all {
		t.Errorf("the same rules were replaced:\n%s\n%s", all, again)
	}
	web := install(PortRange{Protocol: "TCP", First: 80, Last: 80})
	if other := install(PortRange{Protocol: "TCP", First: 81, Last: 81}); web == all || other == web {
		t.Error("other ports changed nothing")
	}
}

// A VMI may list thousands of ports: their rules are one transaction, with an answer for each.
func TestRulesForThousandsOfPorts(t *testing.T) {
	w := newWorld(t)
	step := networkapi.Step{Do: networkapi.Translate,
		Rules: []networkapi.Rule{{Chain: networkapi.Guard, Do: networkapi.Drop, Listed: true}}}
	for i := range uint16(maxPorts) {
		step.Ports = append(step.Ports, networkapi.PortRange{Protocol: "TCP", First: 2*i + 1, Last: 2*i + 1})
	}
	for range 2 { // the second time changes nothing
		if err := errors.Join(Check([]networkapi.Step{step}),
			Change(t.Context(), w.pod, []networkapi.Step{step})); err != nil {
			t.Fatal(err)
		}
	}
}
