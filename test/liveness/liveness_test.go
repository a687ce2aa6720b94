// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package liveness_test holds that no field of the spec of a VMI or of a KubeVirt object is taken and then ignored: each leaf
// changes what the product makes of it, or it is in the table of what is not implemented, or in a list of what is used
// elsewhere.
package liveness_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/fieldsupport"
)

// TestOutcomeIsStable keeps the others from seeing differences that are none.
func TestOutcomeIsStable(t *testing.T) {
	vmi, err := specOf(base)
	if err != nil {
		t.Fatal(err)
	}
	first, err := outcomeOf(vmi)
	if err != nil {
		t.Fatal(err)
	}
	second, err := outcomeOf(vmi)
	if err != nil || first != second {
		t.Errorf("the same VMI has two outcomes:\n%s\n%s\n%v", first, second, err)
	}
}

// TestLiveness tries every leaf.
func TestLiveness(t *testing.T) {
	results := tryAll()
	count := map[verdict]int{}
	used := map[string]bool{}
	for _, r := range results {
		count[r.verdict]++
		used[r.path] = true
		t.Run(r.path, func(t *testing.T) {
			if r.fault != "" {
				t.Error(r.fault)
			}
		})
	}
	for path := range consumedElsewhere {
		if !used[path] {
			t.Errorf("%s is on the list of what is used elsewhere but is no leaf", path)
		}
	}
	share := float64(count[live]) / float64(len(results)) * 100
	t.Logf("%d leaf fields of a VMI's spec: %d live (%.1f %%), %d refused, %d warned about, %d used elsewhere",
		len(results), count[live], share, count[refused], count[warned], count[elsewhere])
	if share < leastShare {
		t.Errorf("%.1f %% of the leaf fields are live, want %d %% at least", share, leastShare)
	}
}

// leastShare is how much of the API works at least, in percent of its leaf fields.
const leastShare = 85

// verdict is what becomes of a leaf.
type verdict string

const (
	live      verdict = "works"
	refused   verdict = "keeps the VM from starting"
	warned    verdict = "has no effect"
	elsewhere verdict = "works, seen elsewhere"
	lost      verdict = "is ignored in silence"
)

// result is a leaf that was tried. A fault is what is wrong about it.
type result struct {
	leaf
	verdict verdict
	fault   string
}

// tryAll tries every leaf, once for all tests.
var tryAll = sync.OnceValue(func() []result {
	var results []result
	for _, l := range leavesOf(reflect.TypeFor[v1.VirtualMachineInstanceSpec]()) {
		r := result{leaf: l}
		r.verdict, r.fault = judge(l)
		results = append(results, r)
	}
	return results
})

func judge(l leaf) (is verdict, fault string) {
	noticed, err := isLive(l)
	row := rowOf(l.path)
	where, isElsewhere := consumedElsewhere[l.path]
	switch {
	case noticed && isElsewhere:
		return elsewhere, fmt.Sprintf("changes the outcome, and is on the list of what is used elsewhere (%s)", where)
	case isElsewhere && row != nil:
		return elsewhere, fmt.Sprintf("is in two lists: %s; %s", where, row.Reason)
	case row != nil && row.Effect == fieldsupport.Refuse:
		return refused, "" // What is refused when it is set may be live when it is not.
	case noticed && row != nil && len(row.Values) == 0:
		return warned, fmt.Sprintf("changes the outcome, and is on the table of what is not implemented: %s", row.Reason)
	case noticed:
		return live, ""
	case isElsewhere:
		return elsewhere, ""
	case row != nil:
		return warned, ""
	default:
		return lost, fmt.Sprintf("nothing notices it: %v", err)
	}
}

// rowOf is the row of the table that a leaf falls under.
func rowOf(path string) *fieldsupport.Field {
	for i := range fieldsupport.VMI {
		row := &fieldsupport.VMI[i]
		if isOrBelow(path, row.Path) {
			return row
		}
	}
	return nil
}

// isLive says that a leaf changes the outcome. The error is why it cannot be tried.
func isLive(l leaf) (bool, error) {
	if fragment, ok := variants[l.path]; ok {
		return differs(l, "", func(*v1.VirtualMachineInstance) (*v1.VirtualMachineInstance, error) {
			return specOf(base, sceneOf(l.path), fragment)
		})
	}
	if text, ok := values[l.path]; ok {
		return differs(l, text, valued(l, text))
	}
	var errs []error
	for _, text := range samples(l.typ) {
		noticed, err := differs(l, text, valued(l, text))
		if noticed {
			return true, nil
		}
		errs = append(errs, err)
	}
	return false, errors.Join(errs...)
}

// valued gives the leaf a value.
func valued(l leaf, text string) func(*v1.VirtualMachineInstance) (*v1.VirtualMachineInstance, error) {
	return func(vmi *v1.VirtualMachineInstance) (*v1.VirtualMachineInstance, error) {
		value := at(reflect.ValueOf(&vmi.Spec), l.path)
		fresh := reflect.New(value.Type())
		if err := yaml.UnmarshalStrict([]byte(text), fresh.Interface()); err != nil {
			return nil, fmt.Errorf("value %s: %w", text, err)
		}
		value.Set(fresh.Elem())
		return vmi, nil
	}
}

// differs compares the outcome of the leaf's scene with that of a variant.
func differs(l leaf, text string, vary func(*v1.VirtualMachineInstance) (*v1.VirtualMachineInstance, error)) (bool, error) {
	without, err := specOf(base, sceneOf(l.path))
	if err != nil {
		return false, fmt.Errorf("scene: %w", err)
	}
	with, err := vary(without.DeepCopy())
	if err != nil {
		return false, err
	}
	if _, ok := variants[l.path]; !ok {
		// What lies above the leaf is in both, so that the leaf alone makes the difference.
		at(reflect.ValueOf(&without.Spec), l.path)
	}
	got, err := outcomeOf(with)
	if err != nil {
		return false, fmt.Errorf("with %s: %w", text, err)
	}
	if before, err := outcomeOf(without); err == nil {
		return got != before, nil
	}
	// A guest that cannot be made without the leaf notices it too.
	return true, nil
}

// sceneOf is the scene of the longest path that a path is or lies below.
func sceneOf(path string) string {
	longest, fragment := "", "{}"
	for prefix, scene := range scenes {
		if isOrBelow(path, prefix) && len(prefix) > len(longest) {
			longest, fragment = prefix, scene
		}
	}
	return fragment
}

func isOrBelow(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+".") || strings.HasPrefix(path, prefix+"[]")
}

// samples are values of a type.
func samples(typ reflect.Type) []string {
	switch typ.String() {
	case "resource.Quantity":
		return []string{`"3Gi"`}
	case "intstr.IntOrString":
		return []string{`8080`}
	}
	switch typ.Kind() {
	case reflect.Bool:
		return []string{"true", "false"}
	case reflect.String:
		return []string{"sample"}
	case reflect.Slice:
		return []string{"[sample]"}
	case reflect.Map:
		return []string{"{sample: value}"}
	case reflect.Struct:
		return []string{"{}"}
	default:
		return []string{"3"}
	}
}
