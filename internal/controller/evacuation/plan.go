// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package evacuation decides which guests of a node migrate next because they have to leave it, and carries that out.
//
// Nothing is remembered from one reconciliation to the next. Of two at the same time, or one with a cache that is behind, both choose the
// same guests in the same order and give their migrations the same names, and the API server takes each once.
package evacuation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/ownmigration"
	"github.com/vireo-project/vireo/internal/eviction"
)

// Guest is a VMI on the node.
type Guest struct {
	VMI *v1.VirtualMachineInstance
	// Strategy is its own, or the cluster's.
	Strategy v1.EvictionStrategy
	// ByDrain says that a drain evicted its Pod.
	ByDrain bool
	// Migrations are those of this VMI that exist.
	Migrations []*v1.VirtualMachineInstanceMigration
}

// Node is what is known about the node.
type Node struct {
	Name string
	// Cordoned says that the node takes no new Pods, Tainted that it asks its guests to leave by the taint that KubeVirt
	// deprecates.
	Cordoned, Tainted bool
}

// Slots are what is left of the limits.
type Slots struct {
	// Cluster and Node are how many more migrations may begin, by the cluster's and by the node's limit. They may be negative.
	Cluster, Node int
	// Namespaces are those that have a migration that takes a slot.
	Namespaces map[string]bool
}

func (s Slots) free() int { return max(0, min(s.Cluster, s.Node)) }

// Plan is what is to be done.
type Plan struct {
	// Migrate are the guests that get a migration, in this order.
	Migrate []Guest
	// Stay are the guests that no longer have to leave.
	Stay []Stay
	// Stuck are the guests that have to leave and cannot.
	Stuck []Stuck
	// Withdraw are migrations that did not begin, and that nobody asks for any more.
	Withdraw []*v1.VirtualMachineInstanceMigration
	// Waiting is how many guests get a migration when others are through.
	Waiting int
}

// Stay is a guest that no longer has to leave its node.
type Stay struct {
	VMI *v1.VirtualMachineInstance
	Why string
}

// Stuck is a guest that has to leave its node and cannot.
type Stuck struct {
	VMI *v1.VirtualMachineInstance
	Why string
}

// Decide makes the plan for a node.
func Decide(node Node, guests []Guest, slots Slots) Plan {
	var plan Plan
	var candidates []Guest
	for i := range guests {
		g := &guests[i]
		if !concerned(g) {
			continue
		}
		marked := eviction.IsMarked(g.VMI)
		why := ""
		if marked && !node.Cordoned && !node.Tainted {
			why = noLongerAsked(node, g)
		}
		switch {
		case why != "":
			plan.Stay = append(plan.Stay, Stay{VMI: g.VMI, Why: why})
			plan.withdraw(node, g)
		case !marked && !node.Tainted:
			plan.withdraw(node, g) // Somebody took the mark away.
		case ownmigration.Active(g.Migrations) != nil:
		case eviction.Obstacle(g.VMI, true) != "":
			plan.Stuck = append(plan.Stuck, Stuck{VMI: g.VMI, Why: eviction.Obstacle(g.VMI, true)})
		default:
			candidates = append(candidates, *g)
		}
	}
	slices.SortStableFunc(candidates, order)
	plan.Migrate, plan.Waiting = ownmigration.Share(candidates, func(g *Guest) string { return g.VMI.Namespace }, slots.free(), slots.Namespaces)
	return plan
}

// concerned says that a guest is moved by migrations of ours. One of the strategy External is left to whoever moves it.
func concerned(g *Guest) bool {
	return eviction.Migrates(g.Strategy) && g.VMI.DeletionTimestamp == nil && !g.VMI.IsFinal()
}

// noLongerAsked says why a marked guest need not leave a node that takes Pods again, or nothing. A drain that was given up is over. An
// eviction that was not a drain's is worth an attempt; whoever wants another one evicts again. Without this, a guest that cannot
// move would try for ever: kubevirt/kubevirt issues 5177 and 9585.
func noLongerAsked(node Node, g *Guest) string {
	if m := ownmigration.Active(g.Migrations); m != nil && !m.IsQueued() && m.DeletionTimestamp == nil {
		return "" // It comes to its end first.
	}
	if g.ByDrain {
		return fmt.Sprintf("node %s was being drained and takes Pods again", node.Name)
	}
	since := eviction.MarkedAt(g.VMI)
	for _, m := range g.Migrations {
		if m.Annotations[v1.EvacuationMigrationAnnotation] != node.Name || m.CreationTimestamp.Before(&since) {
			continue
		}
		if m.DeletionTimestamp != nil && !m.IsFinal() {
			return fmt.Sprintf("migration %s was canceled, and node %s takes Pods: evict the Pod again to have the guest moved", m.Name, node.Name)
		}
		if m.Status.Phase == v1.MigrationFailed {
			return fmt.Sprintf("migration %s failed, and node %s takes Pods: evict the Pod again to try once more", m.Name, node.Name)
		}
	}
	return ""
}

func (p *Plan) withdraw(node Node, g *Guest) {
	m := ownmigration.Active(g.Migrations)
	if m != nil && m.IsQueued() && m.DeletionTimestamp == nil && m.Annotations[v1.EvacuationMigrationAnnotation] == node.Name {
		p.Withdraw = append(p.Withdraw, m)
	}
}

// failures are how often the guest has failed to leave.
func (g *Guest) failures() int {
	n := 0
	for _, m := range g.Migrations {
		if _, evacuates := m.Annotations[v1.EvacuationMigrationAnnotation]; evacuates && m.Status.Phase == v1.MigrationFailed {
			n++
		}
	}
	return n
}

// order has guests that failed wait for those that did not, and those that were evicted first go first.
func order(a, b Guest) int {
	since, other := eviction.MarkedAt(a.VMI), eviction.MarkedAt(b.VMI)
	return cmp.Or(cmp.Compare(a.failures(), b.failures()), since.Compare(other.Time),
		strings.Compare(a.VMI.Namespace, b.VMI.Namespace), strings.Compare(a.VMI.Name, b.VMI.Name))
}

// Takes says whether a migration takes a slot: one that has begun does, and so does one of ours that may begin at any moment. One
// that waits after a failure, or for a quota, does not: guests that cannot leave must not hold up those that can.
func Takes(m *v1.VirtualMachineInstanceMigration, failures int) bool {
	return !m.IsFinal() && (!m.IsQueued() || ownmigration.Evacuates(m) && failures == 0 && !ownmigration.Rejected(m))
}
