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
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/conditions"
	"github.com/vireo-project/vireo/internal/decide/migration/policy"
)

// priorities order the queued migrations. KubeVirt's values; the default is 0.
// Source: kubevirt/kubevirt pkg/util/migrations.
var priorities = map[v1.MigrationPriority]int{
	v1.PrioritySystemCritical:    100,
	v1.PriorityUserTriggered:     50,
	v1.PrioritySystemMaintenance: 20,
}

// Candidate is a migration that has not ended, with the properties that the queue uses.
type Candidate struct {
	// UID and Name are the migration's. The name decides between equal candidates.
	UID  types.UID
	Name types.NamespacedName
	// Active reports whether it already has a slot, because its target's Pod was created.
	Active bool
	// Ready reports whether it could start.
	Ready bool
	// Rejected reports whether a quota rejected it the last time. It then does not delay others.
	Rejected bool
	// Priority is higher for more urgent migrations.
	Priority int
	// Created is when it was created.
	Created time.Time
	// Node is the source's node.
	Node string
	// Overdue reports whether it has run for longer than any migration of its VMI may, or its VMI was deleted. It then
	// uses no slot, so that it does not delay others.
	Overdue bool
	// Silent reports whether the source's node is lost. As long as it is, nothing is transferred, and the migration uses
	// none of the cluster's slots.
	Silent bool

	// overdueAt is when it becomes overdue; zero if never.
	overdueAt time.Time
	of        *v1.VirtualMachineInstanceMigration
}

// Queue contains what the workers of a process share to assign slots: a lock, and the order in which namespaces last
// got a slot. A new process does not know this order, which affects only which namespace is first, and not the limits.
// The zero value is ready for use.
type Queue struct {
	sync.Mutex

	// order contains a number for each namespace, which is higher the more recently it got a slot.
	read  sync.Mutex
	order map[string]uint64
}

// current returns the order. The caller must not change it.
func (q *Queue) current() map[string]uint64 {
	q.read.Lock()
	defer q.read.Unlock()
	return q.order
}

// record records that a namespace has got a slot.
func (q *Queue) record(namespace string) {
	q.read.Lock()
	defer q.read.Unlock()
	q.order = addLast(maps.Clone(q.order), namespace)
	if len(q.order) > maxRecorded {
		maps.DeleteFunc(q.order, func(_ string, at uint64) bool { return at+maxRecorded <= q.order[namespace] })
	}
}

// maxRecorded is how many namespaces are recorded: those that got a slot most recently.
const maxRecorded = 1000

// Limits limit how many migrations run at a time.
type Limits struct {
	// PerCluster limits all migrations, PerNode those with the same source.
	PerCluster, PerNode int
}

// Admit returns the candidates that have a slot or get one now. The most urgent candidates get slots first. Among
// equally urgent ones, each slot goes to the namespace with the fewest slots: a namespace may use all slots while no
// other waits, but then the next free slot goes to another one. If namespaces have equally many slots, the one whose
// last slot is the longest ago is next, and then the one with the oldest migration. The result depends only on the
// arguments, so that two concurrent reconciliations do not assign one slot twice. complete sets Node and Ready of the
// next waiting candidate; it is called only while a slot is free.
func Admit(
	candidates []Candidate, limits Limits, order map[string]uint64, complete func(*Candidate) error,
) (map[types.UID]bool, error) {
	a := admission{limits: limits, admitted: map[types.UID]bool{}, outgoing: map[string]int{},
		perNamespace: map[string]int{}, order: maps.Clone(order)}
	var waiting []Candidate
	for i := range candidates {
		switch c := &candidates[i]; {
		case c.Active:
			a.admit(c)
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
		if err := a.share(waiting[:equal], complete); err != nil {
			return nil, err
		}
		waiting = waiting[equal:]
	}
	return a.admitted, nil
}

// admission assigns slots.
type admission struct {
	limits   Limits
	admitted map[types.UID]bool
	// outgoing counts migrations by their source node, and perNamespace by their namespace. used is the number of used
	// slots of the cluster.
	outgoing, perNamespace map[string]int
	used                   int
	// order is a copy of the Queue's order, to which assigned slots are added.
	order map[string]uint64
}

func (a *admission) admit(c *Candidate) {
	a.admitted[c.UID] = true
	if c.Overdue {
		return
	}
	a.outgoing[c.Node]++
	a.perNamespace[c.Name.Namespace]++
	if !c.Silent {
		a.used++
	}
}

// share assigns slots to migrations that are equally urgent, the oldest of each namespace first.
func (a *admission) share(waiting []Candidate, complete func(*Candidate) error) error {
	queues := map[string][]Candidate{}
	for _, c := range waiting {
		queues[c.Name.Namespace] = append(queues[c.Name.Namespace], c)
	}
	for len(queues) > 0 && a.used < a.limits.PerCluster {
		namespace := a.next(queues)
		c := &queues[namespace][0]
		if err := complete(c); err != nil {
			return err
		}
		if c.Ready && a.outgoing[c.Node] < a.limits.PerNode {
			a.admit(c)
			a.order = addLast(a.order, namespace)
		}
		if queues[namespace] = queues[namespace][1:]; len(queues[namespace]) == 0 {
			delete(queues, namespace)
		}
	}
	return nil
}

// next returns the namespace that gets the next slot.
func (a *admission) next(queues map[string][]Candidate) string {
	return slices.MinFunc(slices.Collect(maps.Keys(queues)), func(x, y string) int {
		return cmp.Or(cmp.Compare(a.perNamespace[x], a.perNamespace[y]), cmp.Compare(a.order[x], a.order[y]),
			byUrgency(queues[x][0], queues[y][0]))
	})
}

// addLast records that a namespace has got the most recent slot.
func addLast(order map[string]uint64, namespace string) map[string]uint64 {
	if order == nil {
		order = map[string]uint64{}
	}
	last := uint64(0)
	for _, position := range order {
		last = max(last, position)
	}
	order[namespace] = last + 1
	return order
}

// urgency returns the urgency of a candidate, which takes precedence over the order of namespaces. Lower values are
// more urgent.
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
		Active:   !m.IsQueued(),
		Rejected: conditions.IsTrue(m.Status.Conditions, v1.VirtualMachineInstanceMigrationRejectedByResourceQuota),
		Ready:    m.Status.Phase == v1.MigrationPending && m.DeletionTimestamp == nil, of: m,
	}
	if m.Spec.Priority != nil {
		c.Priority = priorities[*m.Spec.Priority]
	}
	if m.Status.MigrationState != nil {
		c.Node = m.Status.MigrationState.SourceNode
	}
	return c
}

// precedes reports whether the first of two unfinished migrations of one VMI has precedence: the one that has started,
// or else the older one, or else the first by name.
func precedes(a, b *v1.VirtualMachineInstanceMigration) bool {
	if a.IsQueued() != b.IsQueued() {
		return !a.IsQueued()
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}

// mayFreeSlot reports whether another migration may start after a change of a migration: if it has ended, if its
// finalizer was removed because its VMI was deleted, or if it has started, because the next slot goes to another
// namespace.
func mayFreeSlot(before, after *v1.VirtualMachineInstanceMigration) bool {
	rejected := v1.VirtualMachineInstanceMigrationRejectedByResourceQuota
	return before.IsFinal() != after.IsFinal() || before.IsQueued() != after.IsQueued() ||
		hasFinalizer(before) && !hasFinalizer(after) ||
		!conditions.IsTrue(before.Status.Conditions, rejected) && conditions.IsTrue(after.Status.Conditions, rejected)
}

// hasFinalizer reports whether a migration has our finalizer.
func hasFinalizer(m *v1.VirtualMachineInstanceMigration) bool {
	return controllerutil.ContainsFinalizer(m, v1.VirtualMachineInstanceMigrationFinalizer)
}

// preparationTimeout is how long the preparation of a target may take, in addition to the time that its Pod may be
// pending, which users can change with an annotation.
const preparationTimeout = 15 * time.Minute

// overdueAt returns when a migration has run for longer than any migration of its VMI may; zero if there is no limit.
// The source's agent aborts a transfer long before, except if it cannot, as during post-copy, or if there is no agent.
func overdueAt(m *v1.VirtualMachineInstanceMigration, vmi *v1.VirtualMachineInstance) time.Time {
	state := stateOf(vmi, m.UID)
	if state != nil && state.StartTimestamp != nil {
		longest := policy.MaxDuration(vmi, state.VMIMConfigurationOptions)
		if longest == 0 {
			return time.Time{}
		}
		return state.StartTimestamp.Add(policy.ImageTimeout + longest)
	}
	for _, stamp := range m.Status.PhaseTransitionTimestamps {
		if stamp.Phase == v1.MigrationScheduling {
			return stamp.PhaseTransitionTimestamp.Add(pendingTimeout + preparationTimeout)
		}
	}
	return time.Time{}
}

// firstBackoff is the delay after the first failure. It doubles with each further failure. KubeVirt's value.
const firstBackoff = 20 * time.Second

// maxDoublings prevents an overflow of the delay. No more than maxRetained migrations are counted anyway.
const maxDoublings = 20

// automatic reports whether virt-controller created a migration. Only these are delayed, because virt-controller
// retries them.
func automatic(m *v1.VirtualMachineInstanceMigration) bool {
	_, evacuates := m.Annotations[v1.EvacuationMigrationAnnotation]
	_, updates := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
	return evacuates || updates
}

// backoff returns for how long a migration is delayed because earlier ones failed. Siblings are the migrations of its
// VMI.
func backoff(
	m *v1.VirtualMachineInstanceMigration, siblings []*v1.VirtualMachineInstanceMigration, now time.Time,
) time.Duration {
	if !automatic(m) {
		return 0
	}
	earlier := slices.DeleteFunc(slices.Clone(siblings), func(o *v1.VirtualMachineInstanceMigration) bool {
		return o.UID == m.UID || !automatic(o) || o.CreationTimestamp.After(m.CreationTimestamp.Time)
	})
	slices.SortFunc(earlier, func(a, b *v1.VirtualMachineInstanceMigration) int {
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
	failures, last := 0, time.Time{}
	for _, o := range earlier {
		if o.Status.Phase == v1.MigrationSucceeded {
			break
		}
		if o.Status.Phase != v1.MigrationFailed || o.DeletionTimestamp != nil {
			continue // Canceled, not failed.
		}
		failures++
		if at := enteredAt(&o.Status, v1.MigrationFailed); at.After(last) {
			last = at
		}
	}
	if failures == 0 {
		return 0
	}
	return max(0, last.Add(firstBackoff<<min(failures-1, maxDoublings)).Sub(now))
}

func enteredAt(
	status *v1.VirtualMachineInstanceMigrationStatus, phase v1.VirtualMachineInstanceMigrationPhase,
) time.Time {
	for _, stamp := range status.PhaseTransitionTimestamps {
		if stamp.Phase == phase {
			return stamp.PhaseTransitionTimestamp.Time
		}
	}
	return time.Time{}
}
