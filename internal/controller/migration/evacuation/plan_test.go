// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package evacuation

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/eviction"
	"github.com/vireo-project/vireo/test/builder"
)

var noon = metav1.NewTime(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC))

func minute(n int) metav1.Time { return metav1.NewTime(noon.Add(time.Duration(n) * time.Minute)) }

// guest runs on node-1, can migrate and was evicted at noon.
func guest(name string, changes ...func(*Guest)) Guest {
	g := Guest{Strategy: v1.EvictionStrategyLiveMigrate, VMI: builder.MakeVMI(name).UID(name).
		With(func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase, vmi.Status.NodeName = v1.Running, "node-1" }).
		Condition(v1.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "").Obj()}
	eviction.Mark(&g.VMI.Status, noon)
	for _, change := range changes {
		change(&g)
	}
	return g
}

func unmarked(g *Guest) { eviction.Unmark(&g.VMI.Status) }
func byDrain(g *Guest)  { g.ByDrain = true }
func stuck(g *Guest) {
	g.VMI.Status.Conditions[0].Status, g.VMI.Status.Conditions[0].Message = corev1.ConditionFalse,
		"cannot migrate VMI: why"
}

func at(since metav1.Time) func(*Guest) {
	return func(g *Guest) { eviction.Mark(&g.VMI.Status, since) }
}

// tried adds a migration that was to evacuate the guest.
func tried(name string, phase v1.VirtualMachineInstanceMigrationPhase, created metav1.Time,
	changes ...func(*v1.VirtualMachineInstanceMigration)) func(*Guest) {
	return func(g *Guest) {
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: created, Annotations: map[string]string{v1.EvacuationMigrationAnnotation: "node-1"},
		}}
		m.Spec.Priority, m.Status.Phase = ptr.To(v1.PrioritySystemCritical), phase
		for _, change := range changes {
			change(m)
		}
		g.Migrations = append(g.Migrations, m)
	}
}

func byUser(m *v1.VirtualMachineInstanceMigration) { m.Annotations, m.Spec.Priority = nil, nil }
func forged(m *v1.VirtualMachineInstanceMigration) { m.Spec.Priority = nil }
func rejected(m *v1.VirtualMachineInstanceMigration) {
	m.Status.Conditions = []v1.VirtualMachineInstanceMigrationCondition{{
		Type: v1.VirtualMachineInstanceMigrationRejectedByResourceQuota, Status: corev1.ConditionTrue,
	}}
}
func canceled(m *v1.VirtualMachineInstanceMigration) { m.DeletionTimestamp = &noon }

// summary formats a plan.
// cause is the part of a message to users that names what keeps a guest on its node.
var cause = regexp.MustCompile(`migration \S+ (failed|was canceled)|node \S+`)

func summary(p Plan) []string {
	var words []string
	for _, g := range p.Migrate {
		words = append(words, "migrate "+g.VMI.Name)
	}
	for _, s := range p.Stay {
		words = append(words, "stay "+s.VMI.Name+": "+cause.FindString(s.Why))
	}
	for _, s := range p.Stuck {
		words = append(words, "stuck "+s.VMI.Name+": "+s.Why)
	}
	for _, m := range p.Withdraw {
		words = append(words, "withdraw "+m.Name)
	}
	if p.Waiting > 0 {
		words = append(words, fmt.Sprintf("waiting %d", p.Waiting))
	}
	return words
}

func TestDecide(t *testing.T) {
	plain, cordoned, tainted := Node{Name: "node-1"}, Node{Name: "node-1", Cordoned: true},
		Node{Name: "node-1", Tainted: true}
	strategy := func(s v1.EvictionStrategy) func(*Guest) { return func(g *Guest) { g.Strategy = s } }
	for _, c := range []struct {
		name string
		node Node
		g    Guest
		want []string
	}{
		{"evicted by a drain", cordoned, guest("a", byDrain), []string{"migrate a"}},
		{"evicted by another client", plain, guest("a"), []string{"migrate a"}},
		{"evicted, if it can", cordoned, guest("a", strategy(v1.EvictionStrategyLiveMigrateIfPossible)), []string{"migrate a"}},
		{"another controller's", cordoned, guest("a", strategy(v1.EvictionStrategyExternal)), nil},
		{"another controller's, and the drain is over", plain, guest("a", byDrain, strategy(v1.EvictionStrategyExternal)), nil},
		{"to be shut down", tainted, guest("a", unmarked, strategy(v1.EvictionStrategyNone)), nil},
		{"not evicted", cordoned, guest("a", unmarked), nil},
		{"tainted", tainted, guest("a", unmarked), []string{"migrate a"}},
		{"marked for a node of the past", cordoned, guest("a", func(g *Guest) { g.VMI.Status.EvacuationNodeName = "node-0" }), nil},
		{"being deleted", cordoned, guest("a", func(g *Guest) { g.VMI.DeletionTimestamp = &noon }), nil},
		{"succeeded", cordoned, guest("a", func(g *Guest) { g.VMI.Status.Phase = v1.Succeeded }), nil},
		{"not migratable", cordoned, guest("a", stuck), []string{"stuck a: cannot migrate VMI: why"}},
		{"migrates", cordoned, guest("a", tried("m", v1.MigrationRunning, noon)), nil},
		{"migrates on a user's request", cordoned, guest("a", tried("m", v1.MigrationPending, noon, byUser)), nil},
		{"evicted again after a migration", cordoned, guest("a", tried("m", v1.MigrationSucceeded, minute(-5))), []string{"migrate a"}},
		{"failed, and the drain goes on", cordoned, guest("a", byDrain, tried("m", v1.MigrationFailed, minute(1))), []string{"migrate a"}},
		{"failed, and the taint is there", tainted, guest("a", tried("m", v1.MigrationFailed, minute(1))), []string{"migrate a"}},
		{"failed, and not evicted again", plain, guest("a", tried("m", v1.MigrationFailed, minute(1))),
			[]string{"stay a: migration m failed"}},
		{"failed, and was evicted again", plain, guest("a", tried("m", v1.MigrationFailed, minute(-1))), []string{"migrate a"}},
		{"a user's migration failed", plain, guest("a", tried("m", v1.MigrationFailed, minute(1), byUser)), []string{"migrate a"}},
		{"canceled", plain, guest("a", tried("m", v1.MigrationScheduling, minute(1), canceled)),
			[]string{"stay a: migration m was canceled"}},
		{"canceled during a drain", cordoned, guest("a", byDrain, tried("m", v1.MigrationScheduling, minute(1), canceled)), nil},
		{"the node is uncordoned", plain, guest("a", byDrain), []string{"stay a: node node-1"}},
		{"the node is uncordoned, and the migration is pending", plain, guest("a", byDrain, tried("m", v1.MigrationPending, minute(1))),
			[]string{"stay a: node node-1", "withdraw m"}},
		{"the node is uncordoned, and the migration runs", plain, guest("a", byDrain, tried("m", v1.MigrationRunning, minute(1))), nil},
		{"the node is uncordoned, and the guest cannot migrate", plain, guest("a", byDrain, stuck),
			[]string{"stay a: node node-1"}},
		{"canceled while the migration is pending", cordoned, guest("a", unmarked, tried("m", v1.MigrationPending, noon)), []string{"withdraw m"}},
		{"canceled before the migration has a phase", cordoned, guest("a", unmarked, tried("m", "", noon)), []string{"withdraw m"}},
		{"canceled while the migration runs", cordoned, guest("a", unmarked, tried("m", v1.MigrationScheduling, noon)), nil},
		{"not evicted, and a user's migration is pending", cordoned, guest("a", unmarked, tried("m", v1.MigrationPending, noon, byUser)), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := summary(Decide(c.node, []Guest{c.g}, Slots{Cluster: 5, Node: 2}))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestDecideWithinLimits(t *testing.T) {
	failed := func(n int) func(*Guest) {
		return func(g *Guest) {
			for range n {
				tried("m", v1.MigrationFailed, minute(1))(g)
			}
		}
	}
	guests := []Guest{
		guest("twice", failed(2)), guest("once", failed(1)), guest("late", at(minute(2))), guest("b"), guest("a"),
		guest("first", at(minute(-1))),
	}
	for _, c := range []struct {
		slots Slots
		want  []string
	}{
		{Slots{Cluster: 5, Node: 2}, []string{"migrate first", "migrate a", "waiting 4"}},
		{Slots{Cluster: 1, Node: 2}, []string{"migrate first", "waiting 5"}},
		{Slots{Cluster: -3, Node: 2}, []string{"migrate first", "waiting 5"}},
		{Slots{Cluster: -3, Node: 2, Namespaces: map[string]bool{"default": true}}, []string{"waiting 6"}},
		{Slots{Cluster: 9, Node: 9}, []string{"migrate first", "migrate a", "migrate b", "migrate late", "migrate once", "migrate twice"}},
	} {
		for range 3 {
			if diff := cmp.Diff(c.want, summary(Decide(Node{Name: "node-1", Cordoned: true}, guests, c.slots))); diff != "" {
				t.Errorf("%+v: -want +got:\n%s", c.slots, diff)
			}
			slices.Reverse(guests)
		}
	}
}

// A namespace with many evicted guests does not delay the guests of others.
func TestDecideReachesEachNamespace(t *testing.T) {
	of := func(namespace string) func(*Guest) { return func(g *Guest) { g.VMI.Namespace = namespace } }
	greedy := []Guest{guest("g1", of("greedy"), at(minute(-3))), guest("g2", of("greedy"), at(minute(-2))),
		guest("g3", of("greedy"), at(minute(-1)))}
	guests := slices.Concat(greedy, []Guest{guest("h1", of("honest")), guest("h2", of("honest"))})
	for _, c := range []struct {
		slots Slots
		want  []string
	}{
		{Slots{Cluster: 2, Node: 2}, []string{"migrate g1", "migrate g2", "migrate h1", "waiting 2"}},
		{Slots{Cluster: 0, Node: 2, Namespaces: map[string]bool{"greedy": true}}, []string{"migrate h1", "waiting 4"}},
		{Slots{Cluster: -1, Node: 1, Namespaces: map[string]bool{"greedy": true, "honest": true}}, []string{"waiting 5"}},
	} {
		if diff := cmp.Diff(c.want, summary(Decide(Node{Name: "node-1", Cordoned: true}, guests, c.slots))); diff != "" {
			t.Errorf("%+v: -want +got:\n%s", c.slots, diff)
		}
	}
}

func TestUsesSlot(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*Guest)
		failures int
		want     bool
	}{
		{"ours that is pending", tried("m", v1.MigrationPending, noon), 0, true},
		{"ours without a phase", tried("m", "", noon), 0, true},
		{"ours that is pending after a failure", tried("m", v1.MigrationPending, noon), 1, false},
		{"ours that runs after a failure", tried("m", v1.MigrationScheduling, noon), 1, true},
		{"ours that a quota delays", tried("m", v1.MigrationPending, noon, rejected), 0, false},
		{"ours that runs, and that a quota delayed", tried("m", v1.MigrationRunning, noon, rejected), 0, true},
		{"a user's with our annotation that is pending", tried("m", v1.MigrationPending, noon, forged), 0, false},
		{"a user's that is pending", tried("m", v1.MigrationPending, noon, byUser), 0, false},
		{"a user's that runs", tried("m", v1.MigrationRunning, noon, byUser), 0, true},
		{"one that failed", tried("m", v1.MigrationFailed, noon), 0, false},
		{"one that succeeded", tried("m", v1.MigrationSucceeded, noon), 0, false},
	} {
		g := guest("a", c.change)
		if got := UsesSlot(g.Migrations[0], c.failures); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
