// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"context"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// mergesPerKind is how many objects of each kind two field managers apply.
const mergesPerKind = 6

// Two field managers apply random objects to one object, then the first one applies fewer fields. The result is the
// same with Vireo's schema and with KubeVirt's: lists with keys are merged, others replaced.
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
				// Objects with most fields, so that both managers set most lists.
				g := &generator{random: random, chance: 0.6 + 0.35*random.Float64(), values: knownValues}
				o, err := s.objects(p, g)
				if err != nil {
					t.Fatal(err)
				}
				a := applies{o: o, first: o.next(), second: o.next(), name: fmt.Sprintf("shared-%d", n)}
				delete(a.first, "status")
				delete(a.second, "status")
				a.fewer, _ = fewer(random, a.first).(map[string]any)
				want, got := s.apply(t.Context(), &a, true), s.apply(t.Context(), &a, false)
				if diff := cmp.Diff(want.states, got.states); diff != "" {
					t.Errorf("object %d of seed %d (-with KubeVirt's schema +with ours):\n%s\nKubeVirt's: %v\nours: %v", n, base, diff,
						want.err, got.err)
					continue
				}
				// Count the first two applies: a rule about an immutable spec may reject the third.
				if len(want.states) >= 2 {
					merged++
				}
			}
			totals.merges += merged
			if merged < mergesPerKind/2 && !immutable(p) {
				t.Errorf("only %d of %d objects were merged", merged, mergesPerKind)
			}
		})
	}
}

// immutable reports whether the spec of a kind cannot be changed by a second manager.
func immutable(p pair) bool {
	return p.crd == "backup.kubevirt.io_virtualmachinebackups" ||
		p.crd == "backup.kubevirt.io_virtualmachinebackuptrackers"
}

// applies contains the configurations that two managers apply to one object in turn.
type applies struct {
	o                    *objects
	name                 string
	first, second, fewer map[string]any
}

// outcome contains the object's spec after each accepted apply, and the error of a rejected one.
type outcome struct {
	states []any
	err    error
}

func (s *server) apply(ctx context.Context, a *applies, upstream bool) outcome {
	var out outcome
	for _, step := range []struct {
		manager string
		content map[string]any
	}{{"first", a.first}, {"second", a.second}, {"first", a.fewer}} {
		u := a.o.object(step.content, a.name, upstream)
		config := client.ApplyConfigurationFromUnstructured(u)
		if out.err = s.client.Apply(ctx, config, client.FieldOwner(step.manager), client.ForceOwnership); out.err != nil {
			break
		}
		got := a.o.object(nil, a.name, upstream)
		if out.err = s.client.Get(ctx, client.ObjectKeyFromObject(got), got); out.err != nil {
			break
		}
		out.states = append(out.states, got.Object["spec"])
	}
	if err := client.IgnoreNotFound(s.client.Delete(ctx, a.o.object(nil, a.name, upstream))); err != nil {
		out.err = err
	}
	return out
}

// fewer returns a value without about a quarter of its fields and elements.
func fewer(r *rand.Rand, value any) any {
	switch typed := runtime.DeepCopyJSONValue(value).(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(typed)) {
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
				// Elements keep their fields, which may be keys.
				left = append(left, element)
			}
		}
		return left
	default:
		return typed
	}
}

// Explicit cases for lists of a VM that several managers set: what each applies, and the result.
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
				a := applies{o: o, name: "shared", first: vmWith(name, c.first), second: vmWith(name, c.second),
					fewer: vmWith(name, c.first)}
				out := s.apply(t.Context(), &a, upstream)
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

// vmWith returns a VM with one list in its template.
func vmWith(list string, elements []any) map[string]any {
	return map[string]any{"spec": map[string]any{
		"runStrategy": "Halted",
		"template": map[string]any{"spec": map[string]any{
			"domain": map[string]any{"devices": map[string]any{}},
			list:     elements,
		}},
	}}
}
