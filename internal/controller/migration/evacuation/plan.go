// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package evacuation migrates the guests of a node of which an eviction was requested.
//
// It keeps no state between reconciliations. Two concurrent reconciliations, or one with a stale cache, choose the same
// guests in the same order and give their migrations the same names, so that the API server accepts each migration only
// once.
package evacuation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/migration/automigration"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
)

// Guest is a VMI on the node.
type Guest struct {
	VMI *v1.VirtualMachineInstance
	// Strategy is the VMI's eviction strategy, or the cluster's.
	Strategy v1.EvictionStrategy
	// ByDrain reports whether a drain evicted its Pod.
	ByDrain bool
	// Migrations are the existing migrations of this VMI.
	Migrations []*v1.VirtualMachineInstanceMigration
}

// Node is the state of the node.
type Node struct {
	Name string
	// Cordoned reports whether the node is unschedulable, and Tainted whether it has the taint that requests an
	// evacuation. The taint is deprecated by KubeVirt.
	Cordoned, Tainted bool
}

// Slots are the free slots.
type Slots struct {
	// Cluster and Node are how many more migrations the limits of the cluster and the node allow. They may be negative.
	Cluster, Node int
	// Namespaces are those with a migration that uses a slot.
	Namespaces map[string]bool
}

func (s Slots) free() int { return max(0, min(s.Cluster, s.Node)) }

// Plan is what a reconciliation does.
type Plan struct {
	// Migrate are the guests that get a migration, in this order.
	Migrate []Guest
	// Stay are the guests whose evacuation is no longer requested.
	Stay []Stay
	// Stuck are the guests that cannot be evacuated.
	Stuck []Stuck
	// Withdraw are migrations that have not started and are no longer needed.
	Withdraw []*v1.VirtualMachineInstanceMigration
	// Waiting is how many guests wait for a slot.
	Waiting int
}

// Stay is a guest whose evacuation is no longer requested.
type Stay struct {
	VMI *v1.VirtualMachineInstance
	Why string
}

// Stuck is a guest that cannot be evacuated.
type Stuck struct {
	VMI *v1.VirtualMachineInstance
	Why string
}

// Decide returns the plan for a node.
func Decide(node Node, guests []Guest, slots Slots) Plan {
	var plan Plan
	var candidates []Guest
	for i := range guests {
		g := &guests[i]
		if !evacuates(g) {
			continue
		}
		marked := eviction.IsMarked(g.VMI)
		reason := ""
		if marked && !node.Cordoned && !node.Tainted {
			reason = whyStay(node, g)
		}
		switch {
		case reason != "":
			plan.Stay = append(plan.Stay, Stay{VMI: g.VMI, Why: reason})
			plan.withdraw(node, g)
		case !marked && !node.Tainted:
			plan.withdraw(node, g) // The mark was removed.
		case automigration.Active(g.Migrations) != nil:
		case eviction.Obstacle(g.VMI, true) != "":
			plan.Stuck = append(plan.Stuck, Stuck{VMI: g.VMI, Why: eviction.Obstacle(g.VMI, true)})
		default:
			candidates = append(candidates, *g)
		}
	}
	slices.SortStableFunc(candidates, order)
	plan.Migrate, plan.Waiting = automigration.Share(candidates, func(g *Guest) string { return g.VMI.Namespace },
		slots.free(), slots.Namespaces)
	return plan
}

// evacuates reports whether this controller evacuates a guest. A guest of the strategy External is migrated by another
// component.
func evacuates(g *Guest) bool {
	return eviction.Migrates(g.Strategy) && g.VMI.DeletionTimestamp == nil && !g.VMI.IsFinal()
}

// whyStay explains why a marked guest may stay on a node that is schedulable again; it is empty if the guest may not
// stay. After a drain it may stay, because the drain has ended. After any other eviction it may stay once one migration
// has failed or was canceled: each eviction leads to one attempt. Otherwise a guest that cannot migrate would be
// retried forever: kubevirt/kubevirt issues 5177 and 9585.
func whyStay(node Node, g *Guest) string {
	if m := automigration.Active(g.Migrations); m != nil && !m.IsQueued() && m.DeletionTimestamp == nil {
		return "" // The migration runs: wait until it ends.
	}
	if g.ByDrain {
		return fmt.Sprintf("node %s was being drained and accepts Pods again", node.Name)
	}
	since := eviction.MarkedAt(g.VMI)
	for _, m := range g.Migrations {
		if m.Annotations[v1.EvacuationMigrationAnnotation] != node.Name || m.CreationTimestamp.Before(&since) {
			continue
		}
		if m.DeletionTimestamp != nil && !m.IsFinal() {
			return fmt.Sprintf("migration %s was canceled, and node %s accepts Pods: evict the Pod again to migrate the guest",
				m.Name, node.Name)
		}
		if m.Status.Phase == v1.MigrationFailed {
			return fmt.Sprintf("migration %s failed, and node %s accepts Pods: evict the Pod again to retry", m.Name, node.Name)
		}
	}
	return ""
}

func (p *Plan) withdraw(node Node, g *Guest) {
	m := automigration.Active(g.Migrations)
	if m != nil && m.IsQueued() && m.DeletionTimestamp == nil &&
		m.Annotations[v1.EvacuationMigrationAnnotation] == node.Name {
		p.Withdraw = append(p.Withdraw, m)
	}
}

// failures counts the failed evacuations of the guest.
func (g *Guest) failures() int {
	n := 0
	for _, m := range g.Migrations {
		if _, evacuates := m.Annotations[v1.EvacuationMigrationAnnotation]; evacuates &&
			m.Status.Phase == v1.MigrationFailed {
			n++
		}
	}
	return n
}

// order puts guests with fewer failures first, and then those that were evicted first.
func order(a, b Guest) int {
	since, other := eviction.MarkedAt(a.VMI), eviction.MarkedAt(b.VMI)
	return cmp.Or(cmp.Compare(a.failures(), b.failures()), since.Compare(other.Time),
		strings.Compare(a.VMI.Namespace, b.VMI.Namespace), strings.Compare(a.VMI.Name, b.VMI.Name))
}

// UsesSlot reports whether a migration uses a slot. Started migrations and queued migrations of this controller do. A
// migration that waits after a failure, or for a quota, does not, because guests that cannot migrate must not delay
// others.
func UsesSlot(m *v1.VirtualMachineInstanceMigration, failures int) bool {
	return !m.IsFinal() && (!m.IsQueued() || automigration.Evacuates(m) && failures == 0 && !automigration.Rejected(m))
}
