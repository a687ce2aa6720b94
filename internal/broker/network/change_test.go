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
	"github.com/vireo-project/vireo/internal/brokerapi"
)

func TestCheck(t *testing.T) {
	mac, address := net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.MustParsePrefix("10.0.2.1/24")
	many := func(rules, ports int) brokerapi.Step {
		step := brokerapi.Step{Do: brokerapi.Translate, Ports: make([]PortRange, ports)}
		for i := range step.Ports {
			step.Ports[i] = PortRange{Protocol: "TCP", First: 1, Last: 1}
		}
		for range rules {
			step.Rules = append(step.Rules, brokerapi.Rule{Chain: brokerapi.Guard, Listed: true, Do: brokerapi.Drop})
		}
		return step
	}
	rule := func(change func(*brokerapi.Rule)) brokerapi.Step {
		rule := brokerapi.Rule{
			Chain: brokerapi.Prerouting, In: "eth0", Destination: netip.MustParsePrefix("10.1.0.5/32"), Listed: true,
			Ports: []PortRange{{Protocol: "UDP", First: 53, Last: 53}}, Do: brokerapi.To, Target: netip.MustParseAddr("10.0.2.2"),
		}
		change(&rule)
		return brokerapi.Step{Do: brokerapi.Translate, Rules: []brokerapi.Rule{rule}, Ports: []PortRange{{Protocol: "TCP", First: 80, Last: 81}}}
	}
	for _, step := range []brokerapi.Step{
		{Do: brokerapi.AddBridge, Link: "k6t-eth0", MAC: mac}, {Do: brokerapi.AddAddress, Link: "k6t-eth0", Address: address},
		{Do: brokerapi.Set, Setting: brokerapi.ForwardIPv4}, {Do: brokerapi.Set, Setting: brokerapi.IgnoreARP, Link: "k6t-eth0"},
		{Do: brokerapi.Rename, Link: "eth0-pod", Other: "eth0"}, rule(func(*brokerapi.Rule) {}), many(8, maxPorts-1),
	} {
		if err := Check([]brokerapi.Step{step}); err != nil {
			t.Errorf("%+v: %v", step, err)
		}
	}
	for name, step := range map[string]brokerapi.Step{
		"nothing":                     {Link: "eth0"},
		"no link":                     {Do: brokerapi.SetUp},
		"the loopback interface":      {Do: brokerapi.SetUp, Link: "lo"},
		"a path":                      {Do: brokerapi.SetUp, Link: "../all"},
		"a long name":                 {Do: brokerapi.SetUp, Link: "interface01234-n"},
		"no hardware address":         {Do: brokerapi.AddBridge, Link: "k6t-eth0"},
		"a multicast address":         {Do: brokerapi.SetMAC, Link: "k6t-eth0", MAC: net.HardwareAddr{3, 0, 0, 0, 0, 1}},
		"a short address":             {Do: brokerapi.SetMAC, Link: "k6t-eth0", MAC: mac[:3]},
		"no address":                  {Do: brokerapi.RemoveAddress, Link: "k6t-eth0"},
		"a new name with a slash":     {Do: brokerapi.Rename, Link: "eth0", Other: "a/b"},
		"no bridge":                   {Do: brokerapi.Attach, Link: "tap0"},
		"another setting":             {Do: brokerapi.Set, Setting: "ipv4/ip_default_ttl"},
		"a setting without its link":  {Do: brokerapi.Set, Setting: brokerapi.IgnoreARP},
		"a setting with a link":       {Do: brokerapi.Set, Setting: brokerapi.ForwardIPv4, Link: "eth0"},
		"a setting of all links":      {Do: brokerapi.Set, Setting: brokerapi.IgnoreARP, Link: "all"},
		"another chain":               rule(func(r *brokerapi.Rule) { r.Chain = "input" }),
		"another action":              rule(func(r *brokerapi.Rule) { r.Do = "queue" }),
		"a link with a wildcard":      rule(func(r *brokerapi.Rule) { r.In = "eth*" }),
		"a network of another family": rule(func(r *brokerapi.Rule) { r.Destination = netip.MustParsePrefix("fd00::/8") }),
		"an address within another":   rule(func(r *brokerapi.Rule) { r.IPv6, r.Target = true, netip.MustParseAddr("::ffff:10.0.2.2") }),
		"an address of a link":        rule(func(r *brokerapi.Rule) { r.IPv6, r.Target = true, netip.MustParseAddr("fe80::1%eth0") }),
		"no target":                   rule(func(r *brokerapi.Rule) { r.Target = netip.Addr{} }),
		"a protocol":                  rule(func(r *brokerapi.Rule) { r.Ports[0].Protocol = "SCTP" }),
		"port 0":                      rule(func(r *brokerapi.Rule) { r.Ports[0].First = 0 }),
		"ports in reverse":            rule(func(r *brokerapi.Rule) { r.Ports[0].First = 54 }),
		"too many ports":              many(0, maxPorts+1),
		"too many rules":              many(maxRules+1, 0),
		"too many rules with ports":   many(9, maxPorts),
	} {
		if err := Check([]brokerapi.Step{{Do: brokerapi.SetUp, Link: "eth0"}, step}); brokerapi.CodeOf(err) != brokerapi.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Check(make([]brokerapi.Step, maxSteps+1)); brokerapi.CodeOf(err) != brokerapi.CodeInvalid {
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
	for _, step := range []brokerapi.Step{
		{Do: brokerapi.AddBridge, Link: "bridge0", MAC: mac, MTU: podMTU}, {Do: brokerapi.AddTap, Link: "tap9"},
		{Do: brokerapi.Attach, Link: "tap9", Other: "bridge0", MTU: podMTU}, {Do: brokerapi.Attach, Link: "eth0", Other: "bridge0", MTU: podMTU},
		{Do: brokerapi.AddAddress, Link: "eth0", Address: netip.MustParsePrefix("10.1.0.1/24")}, {Do: brokerapi.SetMAC, Link: "eth0", MAC: mac},
		{Do: brokerapi.Set, Setting: brokerapi.ForwardIPv4}, {Do: brokerapi.Rename, Link: "eth0", Other: "docker0"},
		{Do: brokerapi.Translate, Rules: []brokerapi.Rule{{Chain: brokerapi.Guard, Do: brokerapi.Drop}}},
	} {
		if err := Change(t.Context(), w.pod, []brokerapi.Step{step}); err != nil {
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

// The attacker of this test owns virt-handler. Links cost memory of the kernel, and time of all that change links on the node.
func TestLinksAreLimited(t *testing.T) {
	w := newWorld(t)
	for round := range 2 {
		var steps []brokerapi.Step
		for i := range maxLinks {
			steps = append(steps, brokerapi.Step{Do: brokerapi.AddTap, Link: fmt.Sprintf("tap%d-%d", round, i)})
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
		rules := plans.Rules(&planned, brokerapi.Link{Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.5/24")}})
		step := brokerapi.Step{Do: brokerapi.Translate, Rules: rules, Ports: ports}
		if err := errors.Join(Check([]brokerapi.Step{step}), Change(t.Context(), w.pod, []brokerapi.Step{step})); err != nil {
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
	step := brokerapi.Step{Do: brokerapi.Translate, Rules: []brokerapi.Rule{{Chain: brokerapi.Guard, Do: brokerapi.Drop, Listed: true}}}
	for i := range uint16(maxPorts) {
		step.Ports = append(step.Ports, brokerapi.PortRange{Protocol: "TCP", First: 2*i + 1, Last: 2*i + 1})
	}
	for range 2 { // the second time changes nothing
		if err := errors.Join(Check([]brokerapi.Step{step}), Change(t.Context(), w.pod, []brokerapi.Step{step})); err != nil {
			t.Fatal(err)
		}
	}
}
