// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// priorities order the migrations that wait. KubeVirt's values; one that says nothing has 0.
// Source: kubevirt/kubevirt pkg/util/migrations.
var priorities = map[v1.MigrationPriority]int{
	v1.PrioritySystemCritical:    100,
	v1.PriorityUserTriggered:     50,
	v1.PrioritySystemMaintenance: 20,
}

// Candidate is a migration that is not over, as far as the queue is concerned.
type Candidate struct {
	// UID is the migration's. Name, with the namespace, breaks ties.
	UID  types.UID
	Name types.NamespacedName
	// Active says that it has a slot already: there is a Pod for it, or there was.
	Active bool
	// Ready says that it could begin.
	Ready bool
	// Rejected says that a quota kept it from beginning the last time. It does not keep others waiting.
	Rejected bool
	// Priority is the greater the more urgent it is.
	Priority int
	// Created is when somebody asked for it.
	Created time.Time
	// Node is the node that its guest leaves.
	Node string
	// Silent says that nothing answers of the node that the guest is on. It moves nothing then, for as long as that lasts, and takes none
	// of the cluster's slots.
	Silent bool

	of *v1.VirtualMachineInstanceMigration
}

// Limits are how many migrations go on at a time.
type Limits struct {
	// PerCluster is for all of them, PerNode for those that leave a node.
	PerCluster, PerNode int
}

// Admit returns those of the candidates that have a slot or get one now. Who looks at the same candidates comes to the same
// answer, so that two looks at a time do not give one slot away twice. Of one that waits, look completes Node and Ready when it is
// next: while all slots are taken nobody needs to know.
func Admit(candidates []Candidate, limits Limits, look func(*Candidate) error) (map[types.UID]bool, error) {
	admitted, leaving, taken := map[types.UID]bool{}, map[string]int{}, 0
	take := func(c *Candidate) {
		admitted[c.UID] = true
		leaving[c.Node]++
		if !c.Silent {
			taken++
		}
	}
	var waiting []Candidate
	for i := range candidates {
		switch c := &candidates[i]; {
		case c.Active:
			take(c)
		case c.Ready:
			waiting = append(waiting, *c)
		}
	}
	slices.SortFunc(waiting, byUrgency)
	for i := 0; i < len(waiting) && taken < limits.PerCluster; i++ {
		c := &waiting[i]
		if err := look(c); err != nil {
			return nil, err
		}
		if c.Ready && leaving[c.Node] < limits.PerNode {
			take(c)
		}
	}
	return admitted, nil
}

func byUrgency(a, b Candidate) int {
	if a.Rejected != b.Rejected {
		if a.Rejected {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Created.Compare(b.Created),
		cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
}

func candidate(m *v1.VirtualMachineInstanceMigration) Candidate {
	c := Candidate{
		UID: m.UID, Name: types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, Created: m.CreationTimestamp.Time,
		Active: !m.IsQueued(), Rejected: hasCondition(&m.Status, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota),
		Ready: m.Status.Phase == v1.MigrationPending && m.DeletionTimestamp == nil, of: m,
	}
	if m.Spec.Priority != nil {
		c.Priority = priorities[*m.Spec.Priority]
	}
	if m.Status.MigrationState != nil {
		c.Node = m.Status.MigrationState.SourceNode
	}
	return c
}

// precedes says that of two migrations of one VMI that are not over the first is the one that counts: the one that is further,
// the older one, or else the first by name.
func precedes(a, b *v1.VirtualMachineInstanceMigration) bool {
	if a.IsQueued() != b.IsQueued() {
		return !a.IsQueued()
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// LeavesQueue says that a change of a migration may let another one begin.
func LeavesQueue(before, after *v1.VirtualMachineInstanceMigration) bool {
	rejected := v1.VirtualMachineInstanceMigrationRejectedByResourceQuota
	return before.IsFinal() != after.IsFinal() || !hasCondition(&before.Status, rejected) && hasCondition(&after.Status, rejected)
}
