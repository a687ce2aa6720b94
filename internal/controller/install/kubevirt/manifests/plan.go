// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// Component is one of those whose Pods a rollout replaces, as it was observed.
type Component struct {
	// Name is that of its object.
	Name string
	// Exists reports whether its object exists, and Current whether the object is what is to be installed.
	Exists, Current bool
	// Rollout is how far the Pods of the object are.
	Rollout Rollout
	// Crash is why an updated Pod cannot run, or empty.
	Crash string
}

func (c *Component) done() bool { return c.Exists && c.Current && c.Rollout.Done }

func (c *Component) message() string {
	if c.Exists && c.Current {
		return c.Rollout.Message
	}
	return c.Name + " is still to be applied"
}

// Daemons is a component with a Pod on each node, as it was observed.
type Daemons struct {
	Component
	// Nodes is the number of nodes on which a Pod has to run, and Updated on how many of those that respond it is updated.
	Nodes, Updated int
	// Available is the number of updated Pods that are ready, long enough.
	Available int
	// Lost is the number of nodes whose kubelet does not respond: their Pods can be neither replaced nor ready.
	Lost int
}

// Observed is what the order of a rollout depends on.
type Observed struct {
	// Brokers are the privileged halves of the node agents, and Agents the others.
	Brokers, Agents Daemons
	Controller, API Component
	// Proxy is virt-exportproxy, or nil if it is not installed.
	Proxy *Component
	// First reports that nothing was installed before, and Forward that a newer version is installed than before. See
	// IsForward.
	First, Forward bool
}

// Plan is the next step of a rollout.
type Plan struct {
	// Brokers, Agents, Controller, Proxy and API report what to apply now.
	Brokers, Agents, Controller, Proxy, API bool
	// BrokersUnavailable and AgentsUnavailable are how many of them may be replaced at a time.
	BrokersUnavailable, AgentsUnavailable int
	// Rollout is how far all of it is.
	Rollout Rollout
	// Crash is why the rollout cannot go on, or empty.
	Crash string
}

// Next returns the next step of a rollout.
//
// What is missing is created at once, and a first installation has no order. What exists is updated one component after
// the other, each when the one before is done: brokers, agents, virt-controller, virt-exportproxy, virt-api, so that no
// agent requests what an old broker does not know, and no user what an old agent does not. An older version is
// installed the other way round, but brokers that do not run are replaced even if agents are not ready, which need
// them.
func Next(o Observed) Plan {
	p := Plan{BrokersUnavailable: o.Brokers.maxUnavailable(), AgentsUnavailable: o.Agents.maxUnavailable(),
		Rollout: Rollout{Done: true}}
	type step struct {
		component *Component
		apply     *bool
	}
	steps := []step{{&o.Brokers.Component, &p.Brokers}, {&o.Agents.Component, &p.Agents}, {&o.Controller, &p.Controller},
		{&o.API, &p.API}}
	if o.Proxy != nil {
		steps = slices.Insert(steps, len(steps)-1, step{o.Proxy, &p.Proxy})
	}
	if !o.Forward {
		slices.Reverse(steps)
	}
	broken := o.Brokers.Exists && !o.Brokers.Current && !o.Brokers.Rollout.Done
	waits := false
	if o.Controller.Current && !o.Controller.done() {
		// virt-controllers of two versions run, and either may be the leader: none may undo what the other applies.
		waits = true
		p.wait(&o.Controller)
	}
	messages := make([]string, 0, len(steps))
	for _, s := range steps {
		messages = append(messages, s.component.message())
		if s.component.done() {
			continue
		}
		*s.apply = !s.component.Exists || !waits && !s.component.Current
		if !broken || s.component != &o.Agents.Component || !o.Agents.Current {
			waits = waits || !o.First
		}
		p.wait(s.component)
	}
	if p.Rollout.Done {
		p.Rollout.Message = strings.Join(messages, ", ")
	}
	return p
}

// wait records the first component that is not done, and the first crash.
func (p *Plan) wait(c *Component) {
	if p.Rollout.Done {
		p.Rollout = Rollout{Message: c.message()}
	}
	if p.Crash == "" {
		p.Crash = c.Crash
	}
}

// maxUnavailable returns how many Pods may be replaced at a time: one until an updated one is available, then a tenth
// of the nodes, and one again as soon as an updated one cannot run or all are updated. KubeVirt's numbers. The Pods of
// lost nodes are unavailable anyway, and must not stop the others.
func (d Daemons) maxUnavailable() int {
	switch {
	case d.Current && d.Updated+d.Lost >= d.Nodes:
		return 1
	case d.Crash != "" || d.Available == 0:
		return 1 + d.Lost
	}
	return max(1, (d.Nodes+9)/10) + d.Lost
}

// IsForward reports whether a target version is installed after the observed one was. As in KubeVirt, it is not if
// nothing was installed before or both are semantic versions and the target is not newer.
func IsForward(target, observed string) bool {
	if observed == "" {
		return false
	}
	wanted, err := version.ParseSemantic(target)
	if err != nil {
		return true
	}
	before, err := version.ParseSemantic(observed)
	if err != nil {
		return true
	}
	return before.LessThan(wanted)
}
