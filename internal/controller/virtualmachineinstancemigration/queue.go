// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/migrationpolicy"
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
	// Overdue says that it goes on for longer than any migration of its VMI may, or that its VMI is gone. It takes no slot, so that nobody
	// waits for it.
	Overdue bool
	// Silent says that nothing answers of the node that the guest is on. It moves nothing then, for as long as that lasts, and takes none
	// of the cluster's slots.
	Silent bool

	// overdueAt is when it is overdue, if ever.
	overdueAt time.Time
	of        *v1.VirtualMachineInstanceMigration
}

// Queue is what a process that gives slots away shares among its workers: the lock that is held meanwhile, and whose turn it was. A
// process that begins knows of no turns, which changes who is first and not how many there are. The zero value is ready for use.
type Queue struct {
	sync.Mutex

	read  sync.Mutex
	turns map[string]uint64
}

// current are the turns as they are now. They are not changed.
func (q *Queue) current() map[string]uint64 {
	q.read.Lock()
	defer q.read.Unlock()
	return q.turns
}

// note remembers that a namespace has got a slot.
func (q *Queue) note(namespace string) {
	q.read.Lock()
	defer q.read.Unlock()
	q.turns = turn(maps.Clone(q.turns), namespace)
	if len(q.turns) > maxTurns {
		maps.DeleteFunc(q.turns, func(_ string, at uint64) bool { return at+maxTurns <= q.turns[namespace] })
	}
}

// maxTurns is how many namespaces' turns are remembered, those that got a slot last.
const maxTurns = 1000

// Limits are how many migrations go on at a time.
type Limits struct {
	// PerCluster is for all of them, PerNode for those that leave a node.
	PerCluster, PerNode int
}

// Admit returns those of the candidates that have a slot or get one now. Of those that wait, the most urgent get slots first, and of
// those each time one of a namespace that has the fewest: a namespace may have all slots that nobody else waits for, and the next one
// that is free goes to another. Among namespaces that have as many it goes to the one whose turn was longest ago, and then to the
// oldest. Who looks at the same candidates comes to the same answer, so that two reconciliations at a time do not give one slot away twice. Of
// one that waits, look completes Node and Ready when it is next: while all slots are taken nobody needs to know.
func Admit(candidates []Candidate, limits Limits, turns map[string]uint64, look func(*Candidate) error) (map[types.UID]bool, error) {
	a := admission{limits: limits, admitted: map[types.UID]bool{}, leaving: map[string]int{}, has: map[string]int{}, turns: maps.Clone(turns)}
	var waiting []Candidate
	for i := range candidates {
		switch c := &candidates[i]; {
		case c.Active:
			a.take(c)
		case c.Ready:
			waiting = append(waiting, *c)
		}
	}
	slices.SortFunc(waiting, byUrgency)
	for len(waiting) > 0 {
		equal := slices.IndexFunc(waiting, func(c Candidate) bool { return urgency(&c) != urgency(&waiting[0]) })
		if equal < 0 {
			equal = len(waiting)
		}
		if err := a.share(waiting[:equal], look); err != nil {
			return nil, err
		}
		waiting = waiting[equal:]
	}
	return a.admitted, nil
}

// admission gives slots away.
type admission struct {
	limits   Limits
	admitted map[types.UID]bool
	// leaving are the migrations that leave a node, has those of a namespace, and taken is how many slots of the cluster's are.
	leaving, has map[string]int
	taken        int
	// turns says of each namespace when it got a slot last: the greater the later. It goes on here as slots are given away.
	turns map[string]uint64
}

func (a *admission) take(c *Candidate) {
	a.admitted[c.UID] = true
	if c.Overdue {
		return
	}
	a.leaving[c.Node]++
	a.has[c.Name.Namespace]++
	if !c.Silent {
		a.taken++
	}
}

// share gives slots to migrations that are equally urgent, the oldest of each namespace first.
func (a *admission) share(waiting []Candidate, look func(*Candidate) error) error {
	queues := map[string][]Candidate{}
	for _, c := range waiting {
		queues[c.Name.Namespace] = append(queues[c.Name.Namespace], c)
	}
	for len(queues) > 0 && a.taken < a.limits.PerCluster {
		namespace := a.next(queues)
		c := &queues[namespace][0]
		if err := look(c); err != nil {
			return err
		}
		if c.Ready && a.leaving[c.Node] < a.limits.PerNode {
			a.take(c)
			a.turns = turn(a.turns, namespace)
		}
		if queues[namespace] = queues[namespace][1:]; len(queues[namespace]) == 0 {
			delete(queues, namespace)
		}
	}
	return nil
}

// next is the namespace whose turn it is.
func (a *admission) next(queues map[string][]Candidate) string {
	return slices.MinFunc(slices.Collect(maps.Keys(queues)), func(x, y string) int {
		return cmp.Or(cmp.Compare(a.has[x], a.has[y]), cmp.Compare(a.turns[x], a.turns[y]), byUrgency(queues[x][0], queues[y][0]))
	})
}

// turn says that a namespace has got a slot after all others.
func turn(turns map[string]uint64, namespace string) map[string]uint64 {
	if turns == nil {
		turns = map[string]uint64{}
	}
	last := uint64(0)
	for _, at := range turns {
		last = max(last, at)
	}
	turns[namespace] = last + 1
	return turns
}

// urgency comes before the order of namespaces.
func urgency(c *Candidate) [2]int {
	if c.Rejected {
		return [2]int{1, -c.Priority}
	}
	return [2]int{0, -c.Priority}
}

func byUrgency(a, b Candidate) int {
	x, y := urgency(&a), urgency(&b)
	return cmp.Or(slices.Compare(x[:], y[:]), a.Created.Compare(b.Created),
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

// LeavesQueue says that a change of a migration may let another one begin: one that is over makes room, or that was let go since its VMI
// is gone, and after one that begins it is another namespace's turn.
func LeavesQueue(before, after *v1.VirtualMachineInstanceMigration) bool {
	rejected := v1.VirtualMachineInstanceMigrationRejectedByResourceQuota
	return before.IsFinal() != after.IsFinal() || before.IsQueued() != after.IsQueued() || isHeld(before) && !isHeld(after) ||
		!hasCondition(&before.Status, rejected) && hasCondition(&after.Status, rejected)
}

// isHeld says that a migration has our finalizer.
func isHeld(m *v1.VirtualMachineInstanceMigration) bool {
	return slices.Contains(m.Finalizers, v1.VirtualMachineInstanceMigrationFinalizer)
}

// preparation is how long a target may take that has a Pod, beside the time that its Pod may be pending by default: an annotation of the
// migration can say any time for that.
const preparation = 15 * time.Minute

// overdueAt is when a migration goes on for longer than any of its VMI may, or nothing if there is no limit. The agent of the source ends
// a copy long before. What it cannot end, such as a post-copy, or does not, since it is gone, keeps nobody waiting for ever.
func overdueAt(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) time.Time {
	state := stateOf(vmi, m.UID)
	if state != nil && state.StartTimestamp != nil {
		longest := migrationpolicy.Longest(vmi, state.VMIMConfigurationOptions)
		if longest == 0 {
			return time.Time{}
		}
		return state.StartTimestamp.Add(migrationpolicy.ImagePatience + longest)
	}
	for _, stamp := range m.Status.PhaseTransitionTimestamps {
		if stamp.Phase == v1.MigrationScheduling {
			return stamp.PhaseTransitionTimestamp.Add(pendingTimeout + preparation)
		}
	}
	return time.Time{}
}
