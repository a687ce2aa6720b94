// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"context"
	"fmt"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// mergesPerKind is how often two managers meet at an object of each kind.
const mergesPerKind = 6

// Two managers apply random objects over each other, then the first one applies less than before. An API server with our
// schema makes the same of it as one with KubeVirt's: lists by key are merged, the others replaced.
func TestServerSideApplyMergesTheSame(t *testing.T) {
	s := mustServer(t)
	base := seed(t)
	for i, p := range pairs {
		if p.crd == "" {
			continue
		}
		t.Run(p.name(), func(t *testing.T) {
			random := rand.New(rand.NewSource(base + int64(i)))
			merged := 0
			for n := range mergesPerKind {
				// Full objects, so that both have something to say about most lists.
				g := &generator{random: random, chance: 0.6 + 0.35*random.Float64(), values: knownValues}
				o, err := s.objects(p, g)
				if err != nil {
					t.Fatal(err)
				}
				m := meeting{o: o, first: o.next(), second: o.next(), name: fmt.Sprintf("shared-%d", n)}
				delete(m.first, "status")
				delete(m.second, "status")
				m.fewer, _ = fewer(random, m.first).(map[string]any)
				want, got := s.meet(t.Context(), &m, true), s.meet(t.Context(), &m, false)
				if diff := cmp.Diff(want.states, got.states); diff != "" {
					t.Errorf("meeting %d of seed %d (-with KubeVirt's schema +with ours):\n%s\nKubeVirt's: %v\nours: %v", n, base, diff, want.err, got.err)
					continue
				}
				// The first two applies count: a rule about a spec that cannot change may refuse the third.
				if len(want.states) >= 2 {
					merged++
				}
			}
			totals.merges += merged
			if merged < mergesPerKind/2 && !immutable(p) {
				t.Errorf("only %d of %d meetings came to a merge", merged, mergesPerKind)
			}
		})
	}
}

// immutable tells whether a kind's schema forbids a second manager to say anything new.
func immutable(p pair) bool {
	return p.crd == "backup.kubevirt.io_virtualmachinebackups" || p.crd == "backup.kubevirt.io_virtualmachinebackuptrackers"
}

// meeting is what two managers apply to one object, one after the other.
type meeting struct {
	o                    *objects
	name                 string
	first, second, fewer map[string]any
}

// outcome is the object's spec after each apply that was taken, and why one was not.
type outcome struct {
	states []any
	err    error
}

func (s *server) meet(ctx context.Context, m *meeting, upstream bool) outcome {
	var out outcome
	for _, step := range []struct {
		manager string
		content map[string]any
	}{{"first", m.first}, {"second", m.second}, {"first", m.fewer}} {
		u := m.o.object(step.content, m.name, upstream)
		config := client.ApplyConfigurationFromUnstructured(u)
		if out.err = s.client.Apply(ctx, config, client.FieldOwner(step.manager), client.ForceOwnership); out.err != nil {
			break
		}
		got := m.o.object(nil, m.name, upstream)
		if out.err = s.client.Get(ctx, client.ObjectKeyFromObject(got), got); out.err != nil {
			break
		}
		out.states = append(out.states, got.Object["spec"])
	}
	if err := client.IgnoreNotFound(s.client.Delete(ctx, m.o.object(nil, m.name, upstream))); err != nil {
		out.err = err
	}
	return out
}

// fewer is a value without about a quarter of its fields and elements.
func fewer(r *rand.Rand, value any) any {
	switch typed := runtime.DeepCopyJSONValue(value).(type) {
	case map[string]any:
		for _, key := range sortedKeys(typed) {
			if key != "spec" && r.Intn(4) == 0 {
				delete(typed, key)
				continue
			}
			typed[key] = fewer(r, typed[key])
		}
		return typed
	case []any:
		left := []any{}
		for _, element := range typed {
			if r.Intn(4) != 0 {
				// An element keeps its fields: they may be its key.
				left = append(left, element)
			}
		}
		return left
	default:
		return typed
	}
}

// The same in plain sight, for the lists of a VM that people share: what each manager applies, and what comes of it.
func TestTwoManagersOfAVM(t *testing.T) {
	s := mustServer(t)
	named := func(names ...string) []any {
		var list []any
		for _, name := range names {
			list = append(list, map[string]any{"name": name})
		}
		return list
	}
	spread := func(keys ...string) []any {
		var list []any
		for _, key := range keys {
			list = append(list, map[string]any{"topologyKey": key, "maxSkew": int64(1), "whenUnsatisfiable": "DoNotSchedule"})
		}
		return list
	}
	for name, c := range map[string]struct{ first, second, want []any }{
		"resourceClaims":            {named("gpu"), named("nic"), named("gpu", "nic")},
		"topologySpreadConstraints": {spread("zone"), spread("host"), spread("zone", "host")},
		"volumes":                   {named("root"), named("data"), named("data")},
		"networks":                  {named("default"), named("storage"), named("storage")},
	} {
		t.Run(name, func(t *testing.T) {
			for _, upstream := range []bool{true, false} {
				o := &objects{crd: s.crds["kubevirt.io_virtualmachines"], version: "v1"}
				m := meeting{o: o, name: "shared", first: vmWith(name, c.first), second: vmWith(name, c.second), fewer: vmWith(name, c.first)}
				out := s.meet(t.Context(), &m, upstream)
				if len(out.states) < 2 {
					t.Fatalf("upstream %v: %v", upstream, out.err)
				}
				got, _, err := unstructured.NestedSlice(out.states[1].(map[string]any), "template", "spec", name)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("upstream %v (-want +got):\n%s", upstream, diff)
				}
			}
		})
	}
}

// vmWith is a VM with one list in its template.
func vmWith(list string, elements []any) map[string]any {
	return map[string]any{"spec": map[string]any{
		"runStrategy": "Halted",
		"template": map[string]any{"spec": map[string]any{
			"domain": map[string]any{"devices": map[string]any{}},
			list:     elements,
		}},
	}}
}
