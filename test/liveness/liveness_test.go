// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package liveness_test checks that no field of the spec of a VMI or of a KubeVirt object is accepted and then ignored:
// each leaf changes the outcome, or is in the table of unimplemented fields, or in a list of fields that are used
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
	"github.com/vireo-project/vireo/internal/specsupport"
)

// TestOutcomeIsStable checks that equal VMIs have equal outcomes, as the other tests assume.
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
			t.Errorf("%s is in consumedElsewhere but is not a leaf", path)
		}
	}
	share := float64(count[live]) / float64(len(results)) * 100
	t.Logf("%d leaf fields of a VMI's spec: %d live (%.1f %%), %d refused, %d warned about, %d used elsewhere",
		len(results), count[live], share, count[refused], count[warned], count[elsewhere])
	if share < leastShare {
		t.Errorf("%.1f %% of the leaf fields are live, want %d %% at least", share, leastShare)
	}
}

// leastShare is the minimum of working leaf fields in percent.
const leastShare = 85

// verdict is the result for a leaf.
type verdict string

const (
	live      verdict = "works"
	refused   verdict = "keeps the VM from starting"
	warned    verdict = "has no effect"
	elsewhere verdict = "works, seen elsewhere"
	lost      verdict = "is ignored in silence"
)

// result is the verdict about a leaf. fault is an error message if the tables do not match it.
type result struct {
	leaf
	verdict verdict
	fault   string
}

// tryAll tries every leaf once for all tests.
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
	case row != nil && row.Effect == specsupport.Refuse:
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

// rowOf returns the row of the table for a leaf, or nil.
func rowOf(path string) *specsupport.Field {
	for i := range specsupport.VMIFields {
		row := &specsupport.VMIFields[i]
		if isOrBelow(path, row.Path) {
			return row
		}
	}
	return nil
}

// isLive reports whether a leaf changes the outcome. It returns an error if the leaf cannot be tried.
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

// valued returns a function that sets the leaf to a value.
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

// differs reports whether a variant of the leaf's scene has another outcome.
func differs(
	l leaf, text string, vary func(*v1.VirtualMachineInstance) (*v1.VirtualMachineInstance, error),
) (bool, error) {
	without, err := specOf(base, sceneOf(l.path))
	if err != nil {
		return false, fmt.Errorf("scene: %w", err)
	}
	with, err := vary(without.DeepCopy())
	if err != nil {
		return false, err
	}
	if _, ok := variants[l.path]; !ok {
		// Both have the parents of the leaf, so that only the leaf differs.
		at(reflect.ValueOf(&without.Spec), l.path)
	}
	got, err := outcomeOf(with)
	if err != nil {
		return false, fmt.Errorf("with %s: %w", text, err)
	}
	if before, err := outcomeOf(without); err == nil {
		return got != before, nil
	}
	// A leaf without which the spec is invalid has an effect as well.
	return true, nil
}

// sceneOf returns the scene of the longest prefix of a path.
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

// samples returns values of a type.
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
