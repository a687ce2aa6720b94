// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"slices"
	"strings"
	"testing"
)

// Components as they are observed.
var (
	done    = Component{Name: "done", Exists: true, Current: true, Rollout: Rollout{Done: true, Message: "is ready"}}
	old     = Component{Name: "old", Exists: true, Rollout: Rollout{Done: true}}
	rolling = Component{Name: "rolling", Exists: true, Current: true,
		Rollout: Rollout{Message: "is updated on 1 of 2 nodes"}}
	missing = Component{Name: "missing"}
	// broken is one whose Pods do not run, and which is to be replaced.
	broken  = Component{Name: "broken", Exists: true, Rollout: Rollout{Message: "is updated on 1 of 2 nodes"}}
	crashes = Component{Name: "crashes", Exists: true, Current: true, Crash: "Pod x: CrashLoopBackOff",
		Rollout: Rollout{Message: "is ready on 1 of 2 nodes"}}
)

func TestNext(t *testing.T) {
	for _, c := range []struct {
		name                             string
		forward                          bool
		brokers, agents, controller, api Component
		want                             string
	}{
		{"nothing changes", true, done, done, done, done, "done: is ready, is ready, is ready, is ready"},
		{"first installation", false, missing, missing, done, missing, "agents api brokers"},
		{"first installation, corrected", false, old, old, done, old, "agents api brokers"},
		{"first installation, while virt-controller is replaced", false, old, old, rolling, missing, "api"},
		{"one is deleted while another is updated", true, rolling, old, done, missing, "api"},

		{"forward: the brokers first", true, old, old, old, old, "brokers"},
		{"forward: the brokers are being updated", true, rolling, old, old, old, ""},
		{"forward: a broker crashes", true, crashes, old, old, old, "crash"},
		{"forward: there was no broker before", true, missing, old, done, old, "brokers"},
		{"forward: then the agents", true, done, old, old, old, "agents"},
		{"forward: the agents are being updated", true, done, rolling, old, old, ""},
		{"forward: an agent crashes", true, done, crashes, old, old, "crash"},
		{"forward: then virt-controller", true, done, done, old, old, "controller"},
		{"forward: virt-controller is being replaced", true, done, done, rolling, old, ""},
		{"forward: virt-api last", true, done, done, done, old, "api"},
		{"forward: virt-api is being replaced", true, done, done, done, rolling, ""},

		{"back: virt-api first", false, old, old, old, old, "api"},
		{"back: virt-api is being replaced", false, old, old, old, rolling, ""},
		{"back: then virt-controller", false, old, old, old, done, "controller"},
		{"back: then the agents", false, old, old, done, done, "agents"},
		{"back: the agents are being replaced", false, old, rolling, done, done, ""},
		{"back: the brokers last", false, old, done, done, done, "brokers"},
		{"back: brokers that do not run are replaced, though agents are not ready without them", false, broken, rolling, done, done, "brokers"},
		{"back: agents are applied before", false, broken, old, done, done, "agents"},
		{"back: virt-api is before both", false, broken, rolling, done, old, "api"},
		{"back: brokers that do not run wait until no old virt-controller runs", false, broken, rolling, rolling, done, ""},
		{"forward: brokers that do not run are replaced", true, broken, rolling, old, old, "brokers"},
		{"a new virt-controller waits until no old one runs", true, old, old, rolling, old, ""},
		{"a virt-controller that crashes is replaced when the order allows it", false, old, old, Component{Name: "c", Exists: true, Crash: "y"}, done, "controller crash"},
	} {
		p := Next(Observed{
			First: strings.HasPrefix(c.name, "first"), Forward: c.forward, Controller: c.controller, API: c.api,
			Brokers: Daemons{Component: c.brokers, Nodes: 2, Updated: 1},
			Agents:  Daemons{Component: c.agents, Nodes: 2, Updated: 1},
		})
		var got []string
		for name, applied := range map[string]bool{"brokers": p.Brokers, "agents": p.Agents, "controller": p.Controller,
			"api": p.API} {
			if applied {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if p.Crash != "" {
			got = append(got, "crash")
		}
		if p.Rollout.Done {
			got = append(got, "done: "+p.Rollout.Message)
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
		if p.Rollout.Message == "" {
			t.Errorf("%s: no message", c.name)
		}
	}
}

func TestMaxUnavailable(t *testing.T) {
	updating := Component{Exists: true, Current: true}
	crashing := Component{Exists: true, Current: true, Crash: "x"}
	for _, c := range []struct {
		name   string
		agents Daemons
		want   int
	}{
		{"before the update", Daemons{Component: Component{Exists: true}, Nodes: 200, Updated: 200}, 1},
		{"the canary starts", Daemons{Component: updating, Nodes: 200, Updated: 1}, 1},
		{"the canary is available", Daemons{Component: updating, Nodes: 200, Updated: 1, Available: 1}, 20},
		{"a few nodes", Daemons{Component: updating, Nodes: 3, Updated: 1, Available: 1}, 1},
		{"eleven nodes", Daemons{Component: updating, Nodes: 11, Updated: 1, Available: 1}, 2},
		{"a later agent crashes", Daemons{Component: crashing, Nodes: 200, Updated: 40, Available: 39}, 1},
		{"all are updated", Daemons{Component: updating, Nodes: 200, Updated: 200, Available: 190}, 1},
		{"two nodes are lost before the canary", Daemons{Component: updating, Nodes: 200, Lost: 2}, 3},
		{"two nodes are lost after it", Daemons{Component: updating, Nodes: 200, Updated: 9, Available: 9, Lost: 2}, 22},
		{"all but the lost ones are updated", Daemons{Component: updating, Nodes: 200, Updated: 198, Available: 198, Lost: 2}, 1},
		{"no nodes", Daemons{Component: updating}, 1},
	} {
		if got := c.agents.maxUnavailable(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	p := Next(Observed{Brokers: Daemons{Component: updating, Nodes: 200, Updated: 1, Available: 1},
		Agents: Daemons{Component: crashing, Nodes: 200}})
	if p.BrokersUnavailable != 20 || p.AgentsUnavailable != 1 {
		t.Errorf("the plan replaces %d brokers and %d agents at a time", p.BrokersUnavailable, p.AgentsUnavailable)
	}
}

func TestIsForward(t *testing.T) {
	for _, c := range []struct {
		target, observed string
		want             bool
	}{
		{"v1.2.0", "", false},
		{"v1.2.0", "v1.1.9", true},
		{"v1.10.0", "v1.9.0", true},
		{"v1.2.0", "v1.2.0", false},
		{"v1.1.0", "v1.2.0", false},
		{"v1.2.0", "v1.2.0-rc.1", true},
		{"dev", "v1.2.0", true},
		{"v1.2.0", "dev", true},
		{"dev", "dev", true},
	} {
		if got := IsForward(c.target, c.observed); got != c.want {
			t.Errorf("from %q to %q: %t", c.observed, c.target, got)
		}
	}
}
