// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/internal/wire/brokerapi/networkapi"
)

// fuzzVerb calls check with the arguments of requests that are accepted.
func fuzzVerb[A any](f *testing.F, verb brokerapi.Verb, seeds []A, check func(t *testing.T, a A)) {
	f.Helper()
	for _, seed := range seeds {
		text, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	does := Verbs(pods.New(f.TempDir(), nil))[verb]
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := does("0b7a6b0e-6d53-4f0b-9a41-3a1d8f1f7a11", text); err != nil {
			return
		}
		var a A
		if err := json.Unmarshal(text, &a); err != nil {
			t.Fatalf("%q was accepted: %v", text, err)
		}
		check(t, a)
	})
}

// FuzzChangeNetwork checks that the names of links in steps that are accepted are ones that the kernel accepts and that
// are in no other directory of its settings, and that they have no more rules than the kernel gets.
func FuzzChangeNetwork(f *testing.F) {
	seeds := []networkapi.ChangeNetworkArguments{
		{Steps: []networkapi.Step{{Do: networkapi.SetUp, Link: "eth0"}}},
		{Steps: []networkapi.Step{{Do: networkapi.Set, Setting: networkapi.AcceptRA, Link: "../all"}, {Do: networkapi.Rename, Link: "eth0", Other: "lo"}}},
		{Steps: []networkapi.Step{{Do: networkapi.Translate, Ports: []networkapi.PortRange{{Protocol: "TCP", First: 1, Last: 2}}, Rules: []networkapi.Rule{
			{Chain: networkapi.Prerouting, In: "eth0", Listed: true, Do: networkapi.To, Target: netip.MustParseAddr("10.0.2.2")},
		}}}},
	}
	fuzzVerb(f, brokerapi.ChangeNetwork, seeds, func(t *testing.T, a networkapi.ChangeNetworkArguments) {
		for _, step := range a.Steps {
			if step.Do != networkapi.Translate && (step.Do != networkapi.Set || step.Link != "") {
				expectLink(t, step.Link)
			}
			if step.Do == networkapi.Rename || step.Do == networkapi.Attach {
				expectLink(t, step.Other)
			}
			for _, rule := range step.Rules {
				expectRule(t, rule)
			}
			for _, ports := range step.Ports {
				if ports.First == 0 || ports.Last < ports.First || !slices.Contains([]string{"TCP", "UDP"}, ports.Protocol) {
					t.Errorf("ports %+v", ports)
				}
			}
		}
	})
}

func expectRule(t *testing.T, rule networkapi.Rule) {
	t.Helper()
	for _, name := range []string{rule.In, rule.Out} {
		if name != "" {
			expectLink(t, name)
		}
	}
	for _, network := range []netip.Prefix{rule.Source, rule.Destination} {
		if network.IsValid() && network.Addr().Is4() == rule.IPv6 {
			t.Errorf("the networks %+v", rule)
		}
	}
	if (rule.Do == networkapi.To || rule.Do == networkapi.From) &&
		(!rule.Target.IsValid() || rule.Target.Is4() == rule.IPv6) {
		t.Errorf("the target of %+v", rule)
	}
}

func expectLink(t *testing.T, name string) {
	t.Helper()
	const longest = 15
	if len(name) > longest || strings.ContainsAny(name, "/. \x00\n") ||
		slices.Contains([]string{"", "lo", "all", "default"}, name) {
		t.Errorf("the name %q", name)
	}
}

// FuzzOpenRouter checks the same for the verb that opens a socket.
func FuzzOpenRouter(f *testing.F) {
	fuzzVerb(f, brokerapi.OpenRouter, nil,
		func(t *testing.T, a networkapi.OpenRouterArguments) { expectLink(t, a.Bridge) })
}
