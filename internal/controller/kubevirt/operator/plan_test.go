// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package operator

import (
	"strings"
	"testing"
)

// Components as they are observed.
var (
	done    = Component{Name: "done", Exists: true, Current: true, Rollout: Rollout{Done: true, Message: "is ready"}}
	old     = Component{Name: "old", Exists: true, Rollout: Rollout{Done: true}}
	rolling = Component{Name: "rolling", Exists: true, Current: true, Rollout: Rollout{Message: "is updated on 1 of 2 nodes"}}
	missing = Component{Name: "missing"}
	crashes = Component{Name: "crashes", Exists: true, Current: true, Crash: "Pod x: CrashLoopBackOff", Rollout: Rollout{Message: "is ready on 1 of 2 nodes"}}
)

func TestNext(t *testing.T) {
	for _, c := range []struct {
		name                    string
		forward                 bool
		agents, controller, api Component
		want                    string
	}{
		{"nothing changes", true, done, done, done, "done: is ready, is ready, is ready"},
		{"first installation", false, missing, done, missing, "agents api"},
		{"first installation, corrected", false, old, done, old, "agents api"},
		{"first installation, while virt-controller is replaced", false, old, rolling, missing, "api"},
		{"one is deleted while another is updated", true, rolling, done, missing, "api"},

		{"forward: the agents first", true, old, old, old, "agents"},
		{"forward: the agents are being updated", true, rolling, old, old, ""},
		{"forward: an agent crashes", true, crashes, old, old, "crash"},
		{"forward: then virt-controller", true, done, old, old, "controller"},
		{"forward: virt-controller is being replaced", true, done, rolling, old, ""},
		{"forward: virt-api last", true, done, done, old, "api"},
		{"forward: virt-api is being replaced", true, done, done, rolling, ""},

		{"back: virt-api first", false, old, old, old, "api"},
		{"back: virt-api is being replaced", false, old, old, rolling, ""},
		{"back: then virt-controller", false, old, old, done, "controller"},
		{"back: the agents last", false, old, done, done, "agents"},
		{"a new virt-controller waits until no old one runs", true, old, rolling, old, ""},
		{"a virt-controller that crashes is replaced when the order allows it", false, old, Component{Name: "c", Exists: true, Crash: "y"}, done, "controller crash"},
	} {
		p := Next(World{First: strings.HasPrefix(c.name, "first"), Agents: c.agents, Controller: c.controller, API: c.api, Forward: c.forward, Nodes: 2, Updated: 1})
		var got []string
		for name, applied := range map[string]bool{"agents": p.Agents, "controller": p.Controller, "api": p.API} {
			if applied {
				got = append(got, name)
			}
		}
		if len(got) == 2 && got[0] > got[1] {
			got[0], got[1] = got[1], got[0]
		}
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
	agents := func(current bool, crash string) Component {
		return Component{Exists: true, Current: current, Crash: crash}
	}
	for _, c := range []struct {
		name  string
		world World
		want  int
	}{
		{"before the update", World{Agents: agents(false, ""), Nodes: 200, Updated: 200}, 1},
		{"the canary starts", World{Agents: agents(true, ""), Nodes: 200, Updated: 1}, 1},
		{"the canary is available", World{Agents: agents(true, ""), Nodes: 200, Updated: 1, Available: 1}, 20},
		{"a few nodes", World{Agents: agents(true, ""), Nodes: 3, Updated: 1, Available: 1}, 1},
		{"eleven nodes", World{Agents: agents(true, ""), Nodes: 11, Updated: 1, Available: 1}, 2},
		{"a later agent crashes", World{Agents: agents(true, "x"), Nodes: 200, Updated: 40, Available: 39}, 1},
		{"all are updated", World{Agents: agents(true, ""), Nodes: 200, Updated: 200, Available: 190}, 1},
		{"two nodes are lost before the canary", World{Agents: agents(true, ""), Nodes: 200, Lost: 2}, 3},
		{"two nodes are lost after it", World{Agents: agents(true, ""), Nodes: 200, Updated: 9, Available: 9, Lost: 2}, 22},
		{"all but the lost ones are updated", World{Agents: agents(true, ""), Nodes: 200, Updated: 198, Available: 198, Lost: 2}, 1},
		{"no nodes", World{Agents: agents(true, "")}, 1},
	} {
		if got := c.world.maxUnavailable(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
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
