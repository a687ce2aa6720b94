// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// parse reads candidates such as "a:n1 ns/b:n1* c:n2+50", oldest first: * has a slot, ~ has one and its guest's
// node does not respond, % has one and is overdue, - is not ready, ! was rejected, +n is a priority.
func parse(t *testing.T, text string) []Candidate {
	t.Helper()
	var out []Candidate
	for i, word := range strings.Fields(text) {
		name, rest, ok := strings.Cut(word, ":")
		if !ok {
			t.Fatalf("%q has no node", word)
		}
		c := Candidate{UID: types.UID(name), Ready: true, Created: noon.Add(time.Duration(i) * time.Second)}
		c.Name.Name = name
		if namespace, _, ok := strings.Cut(name, "/"); ok {
			c.Name.Namespace = namespace
		}
		if node, priority, ok := strings.Cut(rest, "+"); ok {
			rest = node
			if _, err := fmt.Sscan(priority, &c.Priority); err != nil {
				t.Fatal(err)
			}
		}
		c.Silent, c.Rejected = strings.HasSuffix(rest, "~"), strings.HasSuffix(rest, "!")
		c.Overdue = strings.HasSuffix(rest, "%")
		c.Active = c.Silent || c.Overdue || strings.HasSuffix(rest, "*")
		c.Ready = !strings.HasSuffix(rest, "-")
		c.Node = strings.TrimRight(rest, "*~-!%")
		out = append(out, c)
	}
	return out
}

func TestAdmit(t *testing.T) {
	for name, tc := range map[string]struct{ candidates, want string }{
		"none":                                        {"", ""},
		"as many as the cluster allows":               {"a:n1 b:n2 c:n3 d:n4 e:n5 f:n6", "a b c d e"},
		"as many as a node allows":                    {"a:n1 b:n1 c:n1 d:n2", "a b d"},
		"active ones keep their slots":                {"a:n1 b:n2 c:n3* d:n4* e:n5* f:n6* g:n7*", "c d e f g"},
		"those of a lost node use no slot":            {"a:n1 b:n2 c:n3 d:n4~ e:n4~ f:n6* g:n7* h:n8", "a b c d e f g"},
		"except those of this node":                   {"a:n1 b:n4 d:n4~ e:n4~", "a d e"},
		"also above the limit":                        {"a:n1* b:n1* c:n1* d:n1", "a b c"},
		"higher priority first":                       {"a:n1 b:n1 c:n1+20 d:n1+100", "c d"},
		"older first":                                 {"b:n1 a:n1 c:n1", "a b"},
		"one that is not ready uses no slot":          {"a:n1- b:n1 c:n1 d:n1", "b c"},
		"an active one need not be ready":             {"a:n1* b:n1 c:n1", "a b"},
		"one that a quota rejects uses no slot":       {"a:n1!+100 b:n1 c:n1", "b c"},
		"but gets a free slot":                        {"a:n1! b:n1", "a b"},
		"a full node does not delay other nodes":      {"a:n1 b:n1 c:n1+50 d:n1+50 e:n2", "c d e"},
		"one namespace may use all slots":             {"x/a:n1 x/b:n2 x/c:n3 x/d:n4 x/e:n5 x/f:n6", "x/a x/b x/c x/d x/e"},
		"but shares them with others":                 {"x/a:n1 x/b:n2 x/c:n3 x/d:n4 y/e:n5 y/f:n6 z/g:n7", "x/a x/b y/e y/f z/g"},
		"a free slot is for the namespace with fewer": {"x/a:n1* x/b:n2* x/c:n3* x/d:n4* x/e:n5 y/f:n6", "x/a x/b x/c x/d y/f"},
		"at equal priority":                           {"x/a:n1* x/b:n2* x/c:n3* x/d:n4* x/e:n5+50 y/f:n6", "x/a x/b x/c x/d x/e"},
		"also on a node":                              {"x/a:n1* x/b:n1 x/c:n1 y/d:n1", "x/a y/d"},
		"a full node is skipped":                      {"x/a:n1* z/b:n1* y/c:n1 y/d:n2 y/e:n2 y/f:n3", "x/a y/d y/e y/f z/b"},
		"an overdue one uses no slot":                 {"x/a:n1% x/b:n1% x/c:n1* y/d:n1 y/e:n1 z/f:n2 z/g:n2 z/h:n3", "x/a x/b x/c y/d z/f z/g z/h"},
		"an unknown node has its own limit":           {"a: b: c: d:n1", "a b d"},
	} {
		t.Run(name, func(t *testing.T) {
			candidates := parse(t, tc.candidates)
			rand.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
			admitted, err := Admit(candidates, Limits{PerCluster: 5, PerNode: 2}, nil, func(*Candidate) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for uid := range maps.Keys(admitted) {
				got = append(got, string(uid))
			}
			slices.Sort(got)
			if s := strings.Join(got, " "); s != tc.want {
				t.Errorf("admitted %q, want %q", s, tc.want)
			}
		})
	}
}

// Namespaces with long queues do not delay one that was added later.
func TestAdmitAlternatesNamespaces(t *testing.T) {
	waiting := parse(t, "a/1:n1 a/2:n2 a/3:n3 b/1:n4 b/2:n5 b/3:n6 c/1:n7")
	queue := &Queue{}
	var started []string
	for len(waiting) > 0 {
		admitted, err := Admit(waiting, Limits{PerCluster: 1, PerNode: 1}, queue.current(),
			func(*Candidate) error { return nil })
		if err != nil || len(admitted) != 1 {
			t.Fatalf("admitted %v: %v", admitted, err)
		}
		i := slices.IndexFunc(waiting, func(c Candidate) bool { return admitted[c.UID] })
		started = append(started, waiting[i].Name.Name)
		queue.record(waiting[i].Name.Namespace)
		waiting = slices.Delete(waiting, i, i+1)
	}
	if got, want := strings.Join(started, " "), "a/1 b/1 c/1 a/2 b/2 a/3 b/3"; got != want {
		t.Errorf("order %s, want %s", got, want)
	}
}

// Admitted candidates stay admitted when others have started, in any order, so no free slot stays unused.
func TestAdmitDoesNotDependOnStartOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		var words []string
		for i := range 12 {
			words = append(words, fmt.Sprintf("%c/%d:n%d", 'x'+rune(random.IntN(3)), i, random.IntN(6)))
		}
		candidates := parse(t, strings.Join(words, " "))
		limits, ready := Limits{PerCluster: 5, PerNode: 2}, func(*Candidate) error { return nil }
		queue := &Queue{}
		for len(candidates) > 0 {
			admitted, err := Admit(candidates, limits, queue.current(), ready)
			if err != nil {
				t.Fatal(err)
			}
			var waits []int
			active := 0
			for i := range candidates {
				switch {
				case candidates[i].Active:
					active++
				case admitted[candidates[i].UID]:
					waits = append(waits, i)
				}
			}
			if len(waits) == 0 {
				if active == 0 {
					t.Fatalf("none of %v is admitted", candidates)
				}
				break
			}
			i := waits[random.IntN(len(waits))]
			candidates[i].Active = true
			queue.record(candidates[i].Name.Namespace)
		}
		taken, leaving := 0, map[string]int{}
		for i := range candidates {
			if candidates[i].Active {
				taken++
				leaving[candidates[i].Node]++
			}
		}
		for i := range candidates {
			if !candidates[i].Active && taken < limits.PerCluster && leaving[candidates[i].Node] < limits.PerNode {
				t.Fatalf("%s waits though there is room", candidates[i].Name)
			}
		}
	}
}

func TestQueueIsBounded(t *testing.T) {
	queue := &Queue{}
	for i := range 3 * maxRecorded {
		queue.record(fmt.Sprint(i))
	}
	if n := len(queue.current()); n != maxRecorded {
		t.Errorf("%d namespaces are recorded", n)
	}
}

func TestOverdue(t *testing.T) {
	started := metav1.NewTime(noon)
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("2Gi"))}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", StartTimestamp: &started}
	waits := &v1.VirtualMachineInstance{}
	forever := vmi.DeepCopy()
	forever.Status.MigrationState.VMIMConfigurationOptions = &v1.VMIMConfigurationOptions{
		CompletionTimeoutPerGiB: ptr.To[int64](0)}
	m := builder.MakeMigration("m", "vm").UID("m").Phase(v1.MigrationScheduling, noon.Add(-time.Hour)).Obj()
	for name, tc := range map[string]struct {
		m    *v1.VirtualMachineInstanceMigration
		vmi  *v1.VirtualMachineInstance
		want time.Time
	}{
		"it transfers":               {m, vmi, noon.Add(45 * time.Minute)},
		"it has no timeout":          {m, forever, time.Time{}},
		"its target is not prepared": {m, waits, noon.Add(-30 * time.Minute)},
		"it has no phase yet":        {builder.MakeMigration("m", "vm").UID("m").Obj(), waits, time.Time{}},
	} {
		if got := overdueAt(tc.m, tc.vmi); !got.Equal(tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// Admit checks readiness only of candidates that could get a slot: there may be thousands of others.
func TestAdmitChecksNextCandidatesOnly(t *testing.T) {
	var checked []string
	admitted, err := Admit(parse(t, "a:n1* b:n2* c:n3* d:n4 e:n4 f:n5 g:n6"), Limits{PerCluster: 5, PerNode: 2}, nil,
		func(c *Candidate) error {
			checked = append(checked, c.Name.Name)
			c.Ready = c.Name.Name != "d"
			return nil
		})
	if err != nil || !slices.Equal(checked, []string{"d", "e", "f"}) || admitted["d"] || !admitted["e"] ||
		!admitted["f"] || admitted["g"] {
		t.Errorf("checked %v, admitted %v: %v", checked, admitted, err)
	}
}

// All reconciliations must choose the same one of two migrations of a VMI.
func TestPrecedesIsAnOrder(t *testing.T) {
	phases := []v1.VirtualMachineInstanceMigrationPhase{v1.MigrationPhaseUnset, v1.MigrationPending,
		v1.MigrationScheduling, v1.MigrationRunning}
	for _, p := range phases {
		for _, q := range phases {
			a := builder.MakeMigration("a", "vm").Created(noon).Phase(p, noon).Obj()
			for _, age := range []time.Duration{-time.Second, 0, time.Second} {
				b := builder.MakeMigration("b", "vm").Created(noon.Add(age)).Phase(q, noon).Obj()
				if precedes(a, b) == precedes(b, a) {
					t.Errorf("%q and %q, %v younger: both or none comes first", p, q, age)
				}
			}
		}
	}
	running := builder.MakeMigration("z", "vm").Created(noon.Add(time.Hour)).Phase(v1.MigrationRunning, noon).Obj()
	if !precedes(running, builder.MakeMigration("a", "vm").Created(noon).Obj()) {
		t.Error("a pending one precedes a running one")
	}
}

func TestBackoff(t *testing.T) {
	evacuates := func(name string, minute int) *builder.Migration {
		return builder.MakeMigration(name,
			"vm").UID(name).Created(noon.Add(time.Duration(minute)*time.Minute)).Annotation(v1.EvacuationMigrationAnnotation,
			"n1")
	}
	at := func(minute int) time.Time { return noon.Add(time.Duration(minute) * time.Minute) }
	failed := func(name string, minute int) *v1.VirtualMachineInstanceMigration {
		return evacuates(name, minute).Phase(v1.MigrationFailed, at(minute)).Obj()
	}
	canceled := failed("x", 4)
	canceled.DeletionTimestamp = &canceled.CreationTimestamp
	for name, tc := range map[string]struct {
		earlier []*v1.VirtualMachineInstanceMigration
		want    time.Duration
	}{
		"none before":             {nil, 0},
		"one failure":             {[]*v1.VirtualMachineInstanceMigration{failed("a", 5)}, 20 * time.Second},
		"three":                   {[]*v1.VirtualMachineInstanceMigration{failed("a", 1), failed("c", 5), failed("b", 3)}, 80 * time.Second},
		"long ago":                {[]*v1.VirtualMachineInstanceMigration{failed("a", 1)}, 0},
		"a success in between":    {[]*v1.VirtualMachineInstanceMigration{failed("a", 1), evacuates("s", 3).Phase(v1.MigrationSucceeded, at(3)).Obj(), failed("b", 5)}, 20 * time.Second},
		"a canceled one":          {[]*v1.VirtualMachineInstanceMigration{canceled, failed("b", 5)}, 20 * time.Second},
		"a user's own":            {[]*v1.VirtualMachineInstanceMigration{builder.MakeMigration("u", "vm").Created(at(4)).Phase(v1.MigrationFailed, at(5)).Obj()}, 0},
		"one that runs elsewhere": {[]*v1.VirtualMachineInstanceMigration{evacuates("r", 4).Phase(v1.MigrationRunning, at(5)).Obj()}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := evacuates("m", 5).Obj()
			if got := backoff(m, append(tc.earlier, m), at(5)); got != tc.want {
				t.Errorf("waits %v, want %v", got, tc.want)
			}
			user := builder.MakeMigration("u", "vm").UID("u").Created(at(5)).Obj()
			if got := backoff(user, tc.earlier, at(5)); got != 0 {
				t.Errorf("a user's migration waits %v", got)
			}
		})
	}
}
