// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package workloadupdate decides which guests get a new launcher next, and carries that out: those whose launcher Pod has an older
// image than the one that is configured, and those whose VMI asks for a change that only another Pod brings.
//
// As in package evacuation nothing is remembered from one reconciliation to the next. What must outlive one is on the objects: the failures of a
// guest are its migrations, and the time of the last evictions is an annotation of the KubeVirt object.
package workloadupdate

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/ownmigration"
	"github.com/vireo-project/vireo/internal/eviction"
	"github.com/vireo-project/vireo/internal/migration"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// What KubeVirt does unless its object says otherwise. Source: kubevirt/kubevirt pkg/virt-controller/watch/workload-updater.
const (
	defaultBatchSize     = 10
	defaultBatchInterval = time.Minute
)

// How long a guest is left alone after migrations that failed: firstBackoff after one, and then twice the time between the last two, which
// is how it doubles without anybody counting. KubeVirt tries for ever every few minutes, as no more than five migrations are kept.
const (
	firstBackoff = 20 * time.Second
	maxBackoff   = time.Hour
)

// Guest is a VMI whose guest runs.
type Guest struct {
	VMI *v1.VirtualMachineInstance
	// Pod is the one that the guest is in, or nil if it is not known.
	Pod *corev1.Pod
	// Migrations are those of this VMI that exist.
	Migrations []*v1.VirtualMachineInstanceMigration
}

// Strategy is what the KubeVirt object says about updates.
type Strategy struct {
	// Migrate and Evict are the methods that may be used. With none of them guests are only labeled and counted.
	Migrate, Evict bool
	// BatchSize guests are evicted at a time, and BatchInterval passes before the next ones.
	BatchSize     int
	BatchInterval time.Duration
}

// StrategyOf resolves the defaults of a strategy.
func StrategyOf(s *v1.KubeVirtWorkloadUpdateStrategy) Strategy {
	out := Strategy{
		Migrate:   slices.Contains(s.WorkloadUpdateMethods, v1.WorkloadUpdateMethodLiveMigrate),
		Evict:     slices.Contains(s.WorkloadUpdateMethods, v1.WorkloadUpdateMethodEvict),
		BatchSize: defaultBatchSize, BatchInterval: defaultBatchInterval,
	}
	if s.BatchEvictionSize != nil {
		out.BatchSize = max(0, *s.BatchEvictionSize)
	}
	if s.BatchEvictionInterval != nil {
		out.BatchInterval = max(0, s.BatchEvictionInterval.Duration)
	}
	return out
}

// World is what a plan depends on beyond the guests.
type World struct {
	// Image is the launcher image that is configured.
	Image    string
	Strategy Strategy
	// Eviction is the strategy of guests that name none.
	Eviction v1.EvictionStrategy
	// Ready says that what is installed is what is configured. Until then no guest is touched: it would be moved by agents that are
	// about to be replaced.
	Ready bool
	// Slots is how many more migrations may begin in the cluster. It may be negative.
	Slots int
	// Namespaces are those that have a migration that takes a slot.
	Namespaces map[string]bool
	// LastBatch is when guests were evicted last, or zero.
	LastBatch time.Time
	Now       time.Time
}

// Plan is what is to be done.
type Plan struct {
	// Outdated is how many guests have an older launcher.
	Outdated int
	// Label are the VMIs that are to be labeled as outdated, Unlabel those that no longer are.
	Label, Unlabel []*v1.VirtualMachineInstance
	// Migrate are the guests that get a migration, in this order.
	Migrate []Guest
	// Evict are the guests whose Pod is evicted, in this order.
	Evict []Guest
	// Withdraw are migrations that nothing asks for any more.
	Withdraw []*v1.VirtualMachineInstanceMigration
	// Waiting is how many guests get a migration when others are through.
	Waiting int
	// Again is when to look without being woken, or zero.
	Again time.Time
}

// touches says that a guest or a migration is touched.
func (p *Plan) touches() bool { return len(p.Migrate)+len(p.Evict)+len(p.Withdraw) > 0 }

// Decide makes the plan.
func Decide(w World, guests []Guest) Plan {
	var plan Plan
	var migrate, evict []Guest
	for i := range guests {
		g := &guests[i]
		outdated := Outdated(g.VMI, g.Pod, w.Image)
		plan.count(g.VMI, outdated)
		switch {
		case !w.Ready || g.VMI.DeletionTimestamp != nil || g.VMI.Status.Phase != v1.Running:
		case !outdated && !changes(g.VMI):
			plan.withdraw(g)
		case g.moving():
		case w.Strategy.Migrate && mayMigrate(g.VMI):
			if at := g.retryAt(); at.After(w.Now) {
				plan.lookAt(at)
				continue
			}
			migrate = append(migrate, *g)
		case w.Strategy.Evict && outdated && mayEvict(g, w.Eviction):
			evict = append(evict, *g)
		}
	}
	slices.SortFunc(migrate, func(a, b Guest) int {
		return cmp.Or(cmp.Compare(len(a.failures()), len(b.failures())), compareNames(a, b))
	})
	plan.Migrate, plan.Waiting = ownmigration.Share(migrate, func(g *Guest) string { return g.VMI.Namespace }, w.Slots, w.Namespaces)
	plan.evict(w, evict)
	return plan
}

// Outdated says that a VMI's guest runs, with another launcher than the one of an image. A guest that has just moved is in another Pod than
// the one that its status still tells about; nil is a Pod that nobody has seen. Guests that are about to end do not count.
func Outdated(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, image string) bool {
	has := vmi.Status.LauncherContainerImageVersion
	if pod != nil {
		has = podspec.LauncherImage(pod)
	}
	return vmi.Status.Phase == v1.Running && vmi.DeletionTimestamp == nil && image != "" && has != "" && has != image
}

func (p *Plan) count(vmi *v1.VirtualMachineInstance, outdated bool) {
	_, labeled := vmi.Labels[v1.OutdatedLauncherImageLabel]
	switch {
	case outdated && !labeled:
		p.Label = append(p.Label, vmi)
	case !outdated && labeled && vmi.DeletionTimestamp == nil && !vmi.IsFinal():
		p.Unlabel = append(p.Unlabel, vmi)
	}
	if outdated {
		p.Outdated++
	}
}

// changes says that a VMI waits for a change that a migration brings. Source: kubevirt/kubevirt, as above, doesRequireMigration.
func changes(vmi *v1.VirtualMachineInstance) bool {
	if _, aborted := vmi.Annotations[v1.WorkloadUpdateMigrationAbortionAnnotation]; aborted {
		return false
	}
	return resizes(vmi) || changesVolumes(vmi)
}

func resizes(vmi *v1.VirtualMachineInstance) bool {
	return vmistatus.FindCondition(&vmi.Status, v1.VirtualMachineInstanceVCPUChange) != nil ||
		vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceMemoryChange) ||
		vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceMigrationRequired)
}

func changesVolumes(vmi *v1.VirtualMachineInstance) bool {
	return vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceVolumesChange)
}

// mayMigrate says that a migration of the VMI would be taken. Copying its volumes elsewhere may be just what it needs to become migratable.
func mayMigrate(vmi *v1.VirtualMachineInstance) bool {
	can := vmistatus.Migratability(&vmi.Status)
	return can != nil && can.Status == corev1.ConditionTrue
}

// mayEvict says that an eviction of the guest's Pod would not be refused for the guest's sake. Asking all the same would be an event for each
// guest and batch, and take the place of one that can be updated.
func mayEvict(g *Guest, otherwise v1.EvictionStrategy) bool {
	if g.Pod == nil || g.Pod.DeletionTimestamp != nil {
		return false
	}
	answer := eviction.Decide(eviction.Facts{Pod: g.Pod, VMI: g.VMI, Default: otherwise, LiveMigration: true})
	return answer.Allowed || answer.Mark
}

// evict takes the next batch. With each batch the order is another one: guests whose eviction a budget refuses must not be asked again
// and again before all others.
func (p *Plan) evict(w World, candidates []Guest) {
	if len(candidates) == 0 || w.Strategy.BatchSize == 0 {
		return
	}
	if next := w.LastBatch.Add(w.Strategy.BatchInterval); next.After(w.Now) && !w.LastBatch.After(w.Now) {
		p.lookAt(next)
		return
	}
	slices.SortFunc(candidates, func(a, b Guest) int {
		return cmp.Or(cmp.Compare(a.place(w.LastBatch), b.place(w.LastBatch)), compareNames(a, b))
	})
	p.Evict = candidates[:min(w.Strategy.BatchSize, len(candidates))]
	p.lookAt(w.Now.Add(w.Strategy.BatchInterval))
}

// place is where a guest stands in the batch after the one of a time.
func (g *Guest) place(last time.Time) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(g.VMI.UID) + last.UTC().Format(time.RFC3339)))
	return h.Sum64()
}

// withdraw takes back what was made for a guest that needs it no longer, as when the image was changed back. The migration of a guest
// that belongs to its target already goes on: what it brought is why nothing asks for it any more.
func (p *Plan) withdraw(g *Guest) {
	m := ownmigration.Active(g.Migrations)
	if m == nil || m.DeletionTimestamp != nil || !ours(m) {
		return
	}
	if record, ok := vmistatus.MigrationRecord(&g.VMI.Status); ok && g.VMI.Status.MigrationState.MigrationUID == m.UID && record.Owner == migration.Target {
		return
	}
	p.Withdraw = append(p.Withdraw, m)
}

func (p *Plan) lookAt(at time.Time) {
	if p.Again.IsZero() || at.Before(p.Again) {
		p.Again = at
	}
}

// moving says that the guest is on its way already, or about to be, whoever asked for that.
func (g *Guest) moving() bool {
	state := g.VMI.Status.MigrationState
	return ownmigration.Active(g.Migrations) != nil || state != nil && !vmistatus.HasEnded(state)
}

// failures are the migrations of ours that failed since the last one that did not, the oldest first. One that was canceled counts: who
// cancels it does not want the next one at once.
func (g *Guest) failures() []*v1.VirtualMachineInstanceMigration {
	history := slices.DeleteFunc(slices.Clone(g.Migrations), func(m *v1.VirtualMachineInstanceMigration) bool { return !ours(m) || !m.IsFinal() })
	slices.SortFunc(history, func(a, b *v1.VirtualMachineInstanceMigration) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for i := len(history) - 1; i >= 0; i-- {
		if history[i].Status.Phase == v1.MigrationSucceeded {
			return history[i+1:]
		}
	}
	return history
}

// retryAt is when a guest may be tried again. The zero time is always over.
func (g *Guest) retryAt() time.Time {
	failed := g.failures()
	if len(failed) == 0 {
		return time.Time{}
	}
	last := failed[len(failed)-1]
	wait := firstBackoff
	if len(failed) > 1 {
		wait = 2 * last.CreationTimestamp.Sub(failed[len(failed)-2].CreationTimestamp.Time)
	}
	return endOf(last).Add(min(max(wait, firstBackoff), maxBackoff))
}

func endOf(m *v1.VirtualMachineInstanceMigration) time.Time {
	for _, stamp := range m.Status.PhaseTransitionTimestamps {
		if stamp.Phase == m.Status.Phase {
			return stamp.PhaseTransitionTimestamp.Time
		}
	}
	return m.CreationTimestamp.Time
}

// Takes says that a migration takes a slot. One that a quota keeps from beginning does not: it keeps nobody waiting.
func Takes(m *v1.VirtualMachineInstanceMigration) bool {
	if m.IsFinal() {
		return false
	}
	if !m.IsQueued() {
		return true
	}
	return !ownmigration.Rejected(m) && (ownmigration.Evacuates(m) || ownmigration.Updates(m))
}

func ours(m *v1.VirtualMachineInstanceMigration) bool {
	_, is := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
	return is
}

func compareNames(a, b Guest) int {
	return cmp.Or(strings.Compare(a.VMI.Namespace, b.VMI.Namespace), strings.Compare(a.VMI.Name, b.VMI.Name))
}
