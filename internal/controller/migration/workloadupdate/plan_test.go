// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package workloadupdate

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/test/builder"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

const older, newer = "registry/virt-launcher:v1", "registry/virt-launcher:v2"

// guest runs with the older launcher, can migrate and has no eviction strategy.
func guest(name string, changes ...func(*Guest)) Guest {
	g := Guest{VMI: builder.MakeVMI(name).UID(name).With(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.Phase, vmi.Status.NodeName, vmi.Status.LauncherContainerImageVersion = v1.Running, "node-1", older
	}).Condition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "").Obj()}
	g.Pod = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: g.VMI.Namespace, Name: "virt-launcher-" + name,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(g.VMI, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec: corev1.PodSpec{NodeName: "node-1",
			Containers: []corev1.Container{{Name: launcherpod.ComputeContainer, Image: older}}},
	}
	for _, change := range changes {
		change(&g)
	}
	return g
}

func labeled(g *Guest) { g.VMI.Labels = map[string]string{v1.OutdatedLauncherImageLabel: ""} }
func current(g *Guest) {
	g.VMI.Status.LauncherContainerImageVersion, g.Pod.Spec.Containers[0].Image = newer, newer
}
func stuck(g *Guest) { g.VMI.Status.Conditions[0].Status = corev1.ConditionFalse }
func protected(g *Guest) {
	g.VMI.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
}

func with(kind v1.VirtualMachineInstanceConditionType) func(*Guest) {
	return func(g *Guest) {
		g.VMI.Status.Conditions = append(g.VMI.Status.Conditions,
			v1.VirtualMachineInstanceCondition{Type: kind, Status: corev1.ConditionTrue})
	}
}

// tried adds a migration of ours that was created ago before noon, and ended a second later if the phase is final.
func tried(
	name string, phase v1.VirtualMachineInstanceMigrationPhase, ago time.Duration, changes ...func(*builder.Migration),
) func(*Guest) {
	return func(g *Guest) {
		b := builder.MakeMigration(name, g.VMI.Name).UID(name).Created(noon.Add(-ago)).Phase(phase,
			noon.Add(time.Second-ago)).
			Annotation(v1.WorkloadUpdateMigrationAnnotation, "").Priority(v1.PrioritySystemCritical)
		for _, change := range changes {
			change(b)
		}
		g.Migrations = append(g.Migrations, b.Obj())
	}
}

// byUser adds a migration that is not ours.
func byUser(phase v1.VirtualMachineInstanceMigrationPhase) func(*Guest) {
	return func(g *Guest) {
		g.Migrations = append(g.Migrations, builder.MakeMigration("user", g.VMI.Name).Phase(phase, noon).Obj())
	}
}

func world(changes ...func(*Observed)) Observed {
	w := Observed{
		Image: newer, Strategy: Strategy{Migrate: true, Evict: true, BatchSize: 10, BatchInterval: time.Minute},
		Eviction: v1.EvictionStrategyNone, Ready: true, Slots: 5, Now: noon,
	}
	for _, change := range changes {
		change(&w)
	}
	return w
}

// summary formats a plan.
func summary(p Plan) []string {
	parts := []string{fmt.Sprintf("outdated %d", p.Outdated)}
	for _, list := range []struct {
		verb string
		vmis []*v1.VirtualMachineInstance
	}{{"label", p.Label}, {"unlabel", p.Unlabel}} {
		for _, vmi := range list.vmis {
			parts = append(parts, list.verb+" "+vmi.Name)
		}
	}
	for _, g := range p.Migrate {
		parts = append(parts, "migrate "+g.VMI.Name)
	}
	for _, g := range p.Evict {
		parts = append(parts, "evict "+g.VMI.Name)
	}
	for _, m := range p.Withdraw {
		parts = append(parts, "withdraw "+m.Name)
	}
	if p.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("waiting %d", p.Waiting))
	}
	if !p.RequeueAt.IsZero() {
		parts = append(parts, "again in "+p.RequeueAt.Sub(noon).String())
	}
	return parts
}

func TestDecide(t *testing.T) {
	methods := func(migrate, evict bool) func(*Observed) {
		return func(w *Observed) { w.Strategy.Migrate, w.Strategy.Evict = migrate, evict }
	}
	onlyMigrate, onlyEvict, none := methods(true, false), methods(false, true), methods(false, false)
	for _, c := range []struct {
		name string
		w    Observed
		g    Guest
		want []string
	}{
		{"outdated", world(), guest("a"), []string{"outdated 1", "label a", "migrate a"}},
		{"outdated and labeled", world(), guest("a", labeled), []string{"outdated 1", "migrate a"}},
		{"no method", world(none), guest("a"), []string{"outdated 1", "label a"}},
		{"before the rollout is over", world(func(w *Observed) { w.Ready = false }), guest("a"), []string{"outdated 1", "label a"}},
		{"current", world(), guest("a", current), []string{"outdated 0"}},
		{"current again", world(), guest("a", current, labeled), []string{"outdated 0", "unlabel a"}},
		{"migrated, and the status is older", world(), guest("a", func(g *Guest) { g.Pod.Spec.Containers[0].Image = newer }), []string{"outdated 0"}},
		{"image replaced by a mirror's", world(), guest("a", func(g *Guest) {
			g.VMI.Status.LauncherContainerImageVersion, g.Pod.Annotations = newer,
				map[string]string{"kubevirt.io/launcher-image": newer}
		}), []string{"outdated 0"}},
		{"no Pod and no image in the status", world(), guest("a", func(g *Guest) { g.Pod, g.VMI.Status.LauncherContainerImageVersion = nil, "" }), []string{"outdated 0"}},
		{"no image configured", world(func(w *Observed) { w.Image = "" }), guest("a"), []string{"outdated 0"}},
		{"starting", world(), guest("a", func(g *Guest) { g.VMI.Status.Phase = v1.Scheduled }), []string{"outdated 0"}},
		{"ending", world(), guest("a", labeled, func(g *Guest) { g.VMI.DeletionTimestamp = &metav1.Time{Time: noon} }), []string{"outdated 0"}},
		{"ended", world(), guest("a", labeled, func(g *Guest) { g.VMI.Status.Phase = v1.Succeeded }), []string{"outdated 0"}},

		{"cannot migrate", world(), guest("a", labeled, stuck), []string{"outdated 1", "evict a", "again in 1m0s"}},
		{"cannot migrate, and must not be evicted", world(onlyMigrate), guest("a", labeled, stuck), []string{"outdated 1"}},
		{"cannot migrate, and its strategy refuses evictions", world(), guest("a", labeled, stuck, protected), []string{"outdated 1"}},
		{"can migrate, and may only be evicted", world(onlyEvict), guest("a", labeled), []string{"outdated 1", "evict a", "again in 1m0s"}},
		{"can migrate, and its eviction moves it", world(onlyEvict), guest("a", labeled, protected), []string{"outdated 1", "evict a", "again in 1m0s"}},
		{"evicted already", world(onlyEvict), guest("a", labeled, protected, func(g *Guest) { g.VMI.Status.EvacuationNodeName = "node-1" }), []string{"outdated 1"}},
		{"its Pod is being deleted", world(onlyEvict), guest("a", labeled, func(g *Guest) { g.Pod.DeletionTimestamp = &metav1.Time{Time: noon} }), []string{"outdated 1"}},
		{"its Pod is not in the cache", world(onlyEvict), guest("a", labeled, func(g *Guest) { g.Pod = nil }), []string{"outdated 1"}},
		{"after another batch", world(onlyEvict, func(w *Observed) { w.LastBatch = noon.Add(-20 * time.Second) }), guest("a", labeled), []string{"outdated 1", "again in 40s"}},
		{"long after another batch", world(onlyEvict, func(w *Observed) { w.LastBatch = noon.Add(-time.Minute) }), guest("a", labeled),
			[]string{"outdated 1", "evict a", "again in 1m0s"}},
		{"another batch in the future, by a clock that was wrong", world(onlyEvict, func(w *Observed) { w.LastBatch = noon.Add(time.Hour) }), guest("a", labeled),
			[]string{"outdated 1", "evict a", "again in 1m0s"}},
		{"batch size 0", world(onlyEvict, func(w *Observed) { w.Strategy.BatchSize = 0 }), guest("a", labeled), []string{"outdated 1"}},

		{"migrates", world(), guest("a", labeled, tried("m", v1.MigrationRunning, time.Minute)), []string{"outdated 1"}},
		{"migrates on a user's request", world(), guest("a", labeled, byUser(v1.MigrationPending)), []string{"outdated 1"}},
		{"migrates, and the migration's object is gone", world(), guest("a", labeled, func(g *Guest) {
			g.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "gone"}
		}), []string{"outdated 1"}},
		{"migrated before", world(), guest("a", labeled, tried("m", v1.MigrationSucceeded, time.Hour)), []string{"outdated 1", "migrate a"}},
		{"failed just now", world(), guest("a", labeled, tried("m", v1.MigrationFailed, 11*time.Second)), []string{"outdated 1", "again in 10s"}},
		{"failed some time ago", world(), guest("a", labeled, tried("m", v1.MigrationFailed, time.Minute)), []string{"outdated 1", "migrate a"}},
		{"a user's migration failed", world(), guest("a", labeled, byUser(v1.MigrationFailed)), []string{"outdated 1", "migrate a"}},

		{"image reverted while the migration is pending", world(), guest("a", current, tried("m", v1.MigrationPending, time.Minute)), []string{"outdated 0", "withdraw m"}},
		{"image reverted while the migration runs", world(), guest("a", current, tried("m", v1.MigrationRunning, time.Minute)), []string{"outdated 0", "withdraw m"}},
		{"runs on the target", world(), guest("a", current, tried("m", v1.MigrationRunning, time.Minute), func(g *Guest) {
			transferred(g)
			g.VMI.Status.MigrationState.TargetNodeDomainReadyTimestamp = &metav1.Time{Time: noon}
		}), []string{"outdated 0"}},
		{"owned by the target, and does not run there yet", world(), guest("a", current, tried("m", v1.MigrationRunning, time.Minute), transferred), []string{"outdated 0"}},
		{"current, and a user migrates it", world(), guest("a", current, byUser(v1.MigrationPending)), []string{"outdated 0"}},

		{"more CPUs in place", world(), guest("a", current, with(v1.VirtualMachineInstanceVCPUChange)), []string{"outdated 0"}},
		{"more memory in place", world(), guest("a", current, with(v1.VirtualMachineInstanceMemoryChange)), []string{"outdated 0"}},
		{"other volumes", world(), guest("a", current, with(v1.VirtualMachineInstanceVolumesChange)), []string{"outdated 0", "migrate a"}},
		{"a change that must not shut it down", world(onlyEvict), guest("a", current, with(v1.VirtualMachineInstanceMigrationRequired)), []string{"outdated 0"}},
		{"a change that was aborted", world(), guest("a", current, with(v1.VirtualMachineInstanceMigrationRequired), func(g *Guest) {
			g.VMI.Annotations = map[string]string{v1.WorkloadUpdateMigrationAbortionAnnotation: ""}
		}, tried("m", v1.MigrationScheduling, time.Minute)), []string{"outdated 0", "withdraw m"}},
		{"other volumes make it migratable", world(), guest("a", current, stuck, with(v1.VirtualMachineInstanceVolumesChange), with(v1.VirtualMachineInstanceIsStorageLiveMigratable), func(g *Guest) {
			g.VMI.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "disk"}}
		}), []string{"outdated 0", "migrate a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, summary(Decide(c.w, []Guest{c.g}))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// transferred makes the target of migration m the owner of a guest.
func transferred(g *Guest) {
	g.VMI.Status.NodeName = "target"
	g.VMI.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: "source",
		TargetNode: "target"}
}

// The time between two attempts doubles up to an hour, also when old migrations of the guest are deleted.
func TestBackoffDoubles(t *testing.T) {
	const kept = 5 // finished migrations
	at, last := noon, time.Duration(0)
	g := guest("a", labeled)
	for round := range 30 {
		if p := Decide(world(func(w *Observed) { w.Now = at }), []Guest{g}); len(p.Migrate) != 1 {
			t.Fatalf("round %d: %v", round, summary(p))
		}
		tried(fmt.Sprintf("m%d", round), v1.MigrationFailed, noon.Sub(at))(&g)
		g.Migrations = g.Migrations[max(0, len(g.Migrations)-kept):]
		p := Decide(world(func(w *Observed) { w.Now = at.Add(time.Second) }), []Guest{g})
		if len(p.Migrate) != 0 || p.RequeueAt.IsZero() {
			t.Fatalf("round %d, right after the failure: %v", round, summary(p))
		}
		wait := p.RequeueAt.Sub(at)
		if wait < last || wait < firstBackoff || wait > maxBackoff+time.Second {
			t.Fatalf("round %d: again after %s, before %s", round, wait, last)
		}
		if last > 0 && last < maxBackoff/2 && wait < 2*last {
			t.Fatalf("round %d: again after %s, before %s", round, wait, last)
		}
		at, last = p.RequeueAt, wait
	}
	if last < maxBackoff {
		t.Errorf("the delay does not reach its limit: %s", last)
	}
}

func TestDecideWithinLimits(t *testing.T) {
	failed := func(g *Guest) { tried("m", v1.MigrationFailed, time.Hour)(g) }
	guests := []Guest{guest("failed", labeled, failed), guest("c", labeled), guest("b", labeled), guest("a", labeled)}
	for _, c := range []struct {
		slots int
		want  []string
	}{
		{-2, []string{"outdated 4", "migrate a", "waiting 3"}},
		{2, []string{"outdated 4", "migrate a", "migrate b", "waiting 2"}},
		{9, []string{"outdated 4", "migrate a", "migrate b", "migrate c", "migrate failed"}},
	} {
		for range 2 {
			if diff := cmp.Diff(c.want, summary(Decide(world(func(w *Observed) { w.Slots = c.slots }), guests))); diff != "" {
				t.Errorf("%d slots: -want +got:\n%s", c.slots, diff)
			}
			slices.Reverse(guests)
		}
	}
}

// A namespace with many outdated launchers, or whose migrations take all slots, does not delay
// the guests of others.
func TestDecideReachesEachNamespace(t *testing.T) {
	of := func(namespace string) func(*Guest) {
		return func(g *Guest) { g.VMI.Namespace, g.Pod.Namespace = namespace, namespace }
	}
	guests := []Guest{guest("a1", labeled, of("a")), guest("a2", labeled, of("a")), guest("b1", labeled, of("b")),
		guest("b2", labeled, of("b"))}
	for _, c := range []struct {
		slots int
		has   map[string]bool
		want  []string
	}{
		{1, nil, []string{"outdated 4", "migrate a1", "migrate b1", "waiting 2"}},
		{0, map[string]bool{"a": true}, []string{"outdated 4", "migrate b1", "waiting 3"}},
		{-1, map[string]bool{"a": true, "b": true}, []string{"outdated 4", "waiting 4"}},
	} {
		got := summary(Decide(world(func(w *Observed) { w.Slots, w.Namespaces = c.slots, c.has }), guests))
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%d slots, of %v: -want +got:\n%s", c.slots, c.has, diff)
		}
	}
}

// Guests whose evictions are refused again and again do not delay the evictions of others.
func TestBatchesReachAllGuests(t *testing.T) {
	var guests []Guest
	for i := range 20 {
		guests = append(guests, guest(fmt.Sprintf("vm-%d", i), labeled, stuck))
	}
	w := world(func(w *Observed) { w.Strategy.BatchSize, w.LastBatch = 3, noon.Add(-time.Hour) })
	evicted := map[string]bool{}
	for batch := range 100 {
		p := Decide(w, guests)
		if len(p.Evict) != 3 {
			t.Fatalf("batch %d: %v", batch, summary(p))
		}
		again := Decide(w, guests)
		for i := range p.Evict {
			if p.Evict[i].VMI.Name != again.Evict[i].VMI.Name {
				t.Fatalf("batch %d: two reconciliations choose differently", batch)
			}
			evicted[p.Evict[i].VMI.Name] = true
		}
		w.LastBatch, w.Now = w.Now, w.Now.Add(w.Strategy.BatchInterval)
	}
	if len(evicted) != len(guests) {
		t.Errorf("only %d of %d were evicted", len(evicted), len(guests))
	}
}

func TestStrategyOf(t *testing.T) {
	if got, want := StrategyOf(&v1.KubeVirtWorkloadUpdateStrategy{}),
		(Strategy{BatchSize: 10, BatchInterval: time.Minute}); got != want {
		t.Errorf("defaults: %+v", got)
	}
	got := StrategyOf(&v1.KubeVirtWorkloadUpdateStrategy{
		WorkloadUpdateMethods: []v1.WorkloadUpdateMethod{v1.WorkloadUpdateMethodEvict, v1.WorkloadUpdateMethodLiveMigrate},
		BatchEvictionSize:     ptr.To(-1), BatchEvictionInterval: &metav1.Duration{Duration: time.Second},
	})
	if want := (Strategy{Migrate: true, Evict: true, BatchInterval: time.Second}); got != want {
		t.Errorf("set: %+v", got)
	}
}

func TestUsesSlot(t *testing.T) {
	rejected := func(m *v1.VirtualMachineInstanceMigration) {
		m.Status.Conditions = []v1.VirtualMachineInstanceMigrationCondition{{
			Type: v1.VirtualMachineInstanceMigrationRejectedByResourceQuota, Status: corev1.ConditionTrue,
		}}
	}
	for _, c := range []struct {
		name string
		g    Guest
		more func(*v1.VirtualMachineInstanceMigration)
		want bool
	}{
		{"ours that is pending", guest("a", tried("m", v1.MigrationPending, 0)), nil, true},
		{"ours that a quota delays", guest("a", tried("m", v1.MigrationPending, 0)), rejected, false},
		{"ours that runs", guest("a", tried("m", v1.MigrationRunning, 0)), rejected, true},
		{"ours that failed", guest("a", tried("m", v1.MigrationFailed, 0)), nil, false},
		{"a drain's that is pending", guest("a", byUser(v1.MigrationPending)), func(m *v1.VirtualMachineInstanceMigration) {
			m.Annotations, m.Spec.Priority = map[string]string{v1.EvacuationMigrationAnnotation: "node-1"},
				ptr.To(v1.PrioritySystemCritical)
		}, true},
		{"a user's with a drain's annotation that is pending", guest("a", byUser(v1.MigrationPending)), func(m *v1.VirtualMachineInstanceMigration) {
			m.Annotations = map[string]string{v1.EvacuationMigrationAnnotation: "node-1"}
		}, false},
		{"a user's with our annotation that is pending", guest("a", tried("m", v1.MigrationPending, 0)), func(m *v1.VirtualMachineInstanceMigration) {
			m.Spec.Priority = nil
		}, false},
		{"a user's that is pending", guest("a", byUser(v1.MigrationPending)), nil, false},
		{"a user's that runs", guest("a", byUser(v1.MigrationScheduling)), nil, true},
	} {
		m := c.g.Migrations[0]
		if c.more != nil {
			c.more(m)
		}
		if got := UsesSlot(m); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestCondition(t *testing.T) {
	status := &v1.KubeVirtStatus{Conditions: []v1.KubeVirtCondition{{Type: v1.KubeVirtConditionAvailable}}}
	stuckWith := func(message string) *v1.KubeVirtCondition {
		return &v1.KubeVirtCondition{Type: v1.KubeVirtConditionWorkloadsMigratable, Status: corev1.ConditionFalse,
			Reason: ReasonSomeCannotMove, Message: message}
	}
	expect := func(message string, wait, got time.Duration) {
		t.Helper()
		if now := status.Conditions[len(status.Conditions)-1].Message; now != message || wait != got {
			t.Errorf("%q after %s, want %q after %s", now, got, message, wait)
		}
	}
	expect("one", 0, setCondition(status, stuckWith("one"), noon))
	expect("one", 10*time.Second, setCondition(status, stuckWith("two"), noon.Add(5*time.Second)))
	expect("two", 0, setCondition(status, stuckWith("two"), noon.Add(15*time.Second)))
	if since := status.Conditions[1].LastTransitionTime; !since.Equal(&metav1.Time{Time: noon}) {
		t.Errorf("it is False since noon, not since %s", since)
	}
	all := stuckWith("fine")
	all.Status = corev1.ConditionTrue
	expect("fine", 0, setCondition(status, all, noon.Add(16*time.Second)))
	if setCondition(status, nil, noon); len(status.Conditions) != 1 ||
		status.Conditions[0].Type != v1.KubeVirtConditionAvailable {
		t.Errorf("left: %+v", status.Conditions)
	}
}

func TestBrief(t *testing.T) {
	if got := brief(strings.Repeat("ü", 300)); len([]rune(got)) != 201 || brief("short") != "short" {
		t.Errorf("%q", got)
	}
}
