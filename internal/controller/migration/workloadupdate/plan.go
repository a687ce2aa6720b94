// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package workloadupdate gives guests a new launcher: those whose launcher Pod has another image than the configured
// one, and those whose VMI has a change that needs another Pod.
//
// As in package evacuation, it keeps no state between reconciliations. A guest's failures are counted from its
// migrations, and the time of the last evictions is in an annotation of the KubeVirt object.
package workloadupdate

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/controller/migration/automigration"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/podspec"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// The defaults of workloadUpdateStrategy. Source: kubevirt/kubevirt pkg/virt-controller/watch/workload-updater.
const (
	defaultBatchSize     = 10
	defaultBatchInterval = time.Minute
)

// How long a guest is not retried after failed migrations: firstBackoff after the first one, and then twice the time
// between the last two, so that it doubles without a counter. Only five migrations of a guest are kept. KubeVirt
// retries every few minutes forever.
const (
	firstBackoff = 20 * time.Second
	maxBackoff   = time.Hour
)

// Guest is a VMI whose guest runs.
type Guest struct {
	VMI *v1.VirtualMachineInstance
	// Pod is the guest's launcher Pod, or nil if it is unknown.
	Pod *corev1.Pod
	// Migrations are the existing migrations of this VMI.
	Migrations []*v1.VirtualMachineInstanceMigration
}

// Strategy is the workloadUpdateStrategy of the KubeVirt object, with its defaults.
type Strategy struct {
	// Migrate and Evict are the methods that may be used. Without them guests are only labeled and counted.
	Migrate, Evict bool
	// BatchSize is how many guests are evicted at a time, and BatchInterval the time between two batches.
	BatchSize     int
	BatchInterval time.Duration
}

// StrategyOf sets the defaults of a strategy.
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

// Observed is what a plan depends on besides the guests.
type Observed struct {
	// Image is the configured launcher image.
	Image    string
	Strategy Strategy
	// Eviction is the eviction strategy of VMIs that have none.
	Eviction v1.EvictionStrategy
	// Ready reports whether the installation matches the configuration. Until then no guest is migrated or evicted,
	// because the agents are about to be replaced.
	Ready bool
	// Slots is how many more migrations the limit of the cluster allows. It may be negative.
	Slots int
	// Namespaces are those with a migration that uses a slot.
	Namespaces map[string]bool
	// LastBatch is when guests were last evicted, or zero.
	LastBatch time.Time
	Now       time.Time
}

// Plan contains the actions of a reconciliation.
type Plan struct {
	// Outdated is how many guests have an older launcher.
	Outdated int
	// Label are the VMIs to label as outdated, Unlabel those that are no longer outdated.
	Label, Unlabel []*v1.VirtualMachineInstance
	// Migrate are the guests that get a migration, in this order.
	Migrate []Guest
	// Evict are the guests whose Pod is evicted, in this order.
	Evict []Guest
	// Withdraw are migrations that are no longer needed.
	Withdraw []*v1.VirtualMachineInstanceMigration
	// Waiting is how many guests wait for a slot.
	Waiting int
	// RequeueAt is when to reconcile again, or zero.
	RequeueAt time.Time
}

// hasActions reports whether the plan migrates or evicts a guest, or deletes a migration.
func (p *Plan) hasActions() bool { return len(p.Migrate)+len(p.Evict)+len(p.Withdraw) > 0 }

// Decide returns the plan.
func Decide(o Observed, guests []Guest) Plan {
	var plan Plan
	var migrate, evict []Guest
	for i := range guests {
		g := &guests[i]
		outdated := Outdated(g.VMI, g.Pod, o.Image)
		plan.count(g.VMI, outdated)
		switch {
		case !o.Ready || g.VMI.DeletionTimestamp != nil || g.VMI.Status.Phase != v1.Running:
		case !outdated && !changes(g.VMI):
			plan.withdraw(g)
		case g.isMigrating():
		case o.Strategy.Migrate && mayMigrate(g.VMI):
			if at := g.retryAt(); at.After(o.Now) {
				plan.requeueAt(at)
				continue
			}
			migrate = append(migrate, *g)
		case o.Strategy.Evict && outdated && mayEvict(g, o.Eviction):
			evict = append(evict, *g)
		}
	}
	slices.SortFunc(migrate, func(a, b Guest) int {
		return cmp.Or(cmp.Compare(len(a.failures()), len(b.failures())), compareNames(a, b))
	})
	plan.Migrate, plan.Waiting = automigration.Share(migrate, func(g *Guest) string { return g.VMI.Namespace }, o.Slots,
		o.Namespaces)
	plan.evict(o, evict)
	return plan
}

// Outdated reports whether a VMI's guest runs in a launcher with another image. The Pod, which is nil if it is unknown,
// takes precedence over the VMI's status, which may be stale after a migration. A VMI that is being deleted is not
// outdated.
func Outdated(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, image string) bool {
	current := vmi.Status.LauncherContainerImageVersion
	if pod != nil {
		current = podspec.LauncherImage(pod)
	}
	return vmi.Status.Phase == v1.Running && vmi.DeletionTimestamp == nil && image != "" && current != "" &&
		current != image
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

// changes reports whether a VMI has a pending change that a migration applies. Unlike in KubeVirt, HotVCPUChange and
// HotMemoryChange require none by themselves: a Pod is resized in place where that is possible.
func changes(vmi *v1.VirtualMachineInstance) bool {
	if _, aborted := vmi.Annotations[v1.WorkloadUpdateMigrationAbortionAnnotation]; aborted {
		return false
	}
	return resizes(vmi) || changesVolumes(vmi)
}

func resizes(vmi *v1.VirtualMachineInstance) bool {
	return vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceMigrationRequired)
}

func changesVolumes(vmi *v1.VirtualMachineInstance) bool {
	return vmistatus.IsConditionTrue(&vmi.Status, v1.VirtualMachineInstanceVolumesChange)
}

// mayMigrate reports whether a migration of the VMI would be accepted. A migration of its volumes may make it
// migratable.
func mayMigrate(vmi *v1.VirtualMachineInstance) bool {
	migratable := vmistatus.Migratability(&vmi.Status)
	return migratable != nil && migratable.Status == corev1.ConditionTrue
}

// mayEvict reports whether our webhook allows an eviction of the guest's Pod. A rejected eviction would record an event
// in each batch, and take the place of a guest that can be updated.
func mayEvict(g *Guest, otherwise v1.EvictionStrategy) bool {
	if g.Pod == nil || g.Pod.DeletionTimestamp != nil {
		return false
	}
	decision := eviction.Decide(eviction.Facts{Pod: g.Pod, VMI: g.VMI, Default: otherwise, LiveMigration: true})
	return decision.Allowed || decision.Mark
}

// evict chooses the next batch. The order changes with each batch, so that guests whose eviction is rejected because of
// a disruption budget do not block all others.
func (p *Plan) evict(o Observed, candidates []Guest) {
	if len(candidates) == 0 || o.Strategy.BatchSize == 0 {
		return
	}
	if next := o.LastBatch.Add(o.Strategy.BatchInterval); next.After(o.Now) && !o.LastBatch.After(o.Now) {
		p.requeueAt(next)
		return
	}
	slices.SortFunc(candidates, func(a, b Guest) int {
		return cmp.Or(cmp.Compare(a.position(o.LastBatch), b.position(o.LastBatch)), compareNames(a, b))
	})
	p.Evict = candidates[:min(o.Strategy.BatchSize, len(candidates))]
	p.requeueAt(o.Now.Add(o.Strategy.BatchInterval))
}

// position returns the guest's position in the order of the batch that follows the one at the time last.
func (g *Guest) position(last time.Time) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(string(g.VMI.UID) + last.UTC().Format(time.RFC3339)))
	return h.Sum64()
}

// withdraw deletes the migration of a guest that no longer needs it, as when the image was changed back. A migration
// whose target owns the guest already continues: it has just updated the guest.
func (p *Plan) withdraw(g *Guest) {
	m := automigration.Active(g.Migrations)
	if m == nil || m.DeletionTimestamp != nil || !isUpdate(m) {
		return
	}
	if record, ok := vmistatus.MigrationRecord(&g.VMI.Status); ok && g.VMI.Status.MigrationState.MigrationUID == m.UID &&
		record.Owner == protocol.Target {
		return
	}
	p.Withdraw = append(p.Withdraw, m)
}

func (p *Plan) requeueAt(at time.Time) {
	if p.RequeueAt.IsZero() || at.Before(p.RequeueAt) {
		p.RequeueAt = at
	}
}

// isMigrating reports whether the guest has a migration that has not ended, of this controller or not.
func (g *Guest) isMigrating() bool {
	return automigration.Active(g.Migrations) != nil || vmistatus.Migrating(&g.VMI.Status)
}

// failures returns this controller's migrations that have failed since the last success, the oldest first. A migration
// that a user canceled counts, so that the next one does not follow at once.
func (g *Guest) failures() []*v1.VirtualMachineInstanceMigration {
	history := slices.DeleteFunc(slices.Clone(g.Migrations),
		func(m *v1.VirtualMachineInstanceMigration) bool { return !isUpdate(m) || !m.IsFinal() })
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

// retryAt returns when a guest may be retried; zero means now.
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

// UsesSlot reports whether a migration uses a slot. One that cannot start because of a quota does not, and so does not
// delay others.
func UsesSlot(m *v1.VirtualMachineInstanceMigration) bool {
	if m.IsFinal() {
		return false
	}
	if !m.IsQueued() {
		return true
	}
	return !automigration.Rejected(m) && (automigration.Evacuates(m) || automigration.Updates(m))
}

// isUpdate reports whether a migration has the annotation of workload updates.
func isUpdate(m *v1.VirtualMachineInstanceMigration) bool {
	_, annotated := m.Annotations[v1.WorkloadUpdateMigrationAnnotation]
	return annotated
}

func compareNames(a, b Guest) int {
	return cmp.Or(strings.Compare(a.VMI.Namespace, b.VMI.Namespace), strings.Compare(a.VMI.Name, b.VMI.Name))
}
