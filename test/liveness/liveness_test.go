// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package liveness_test holds that no field of a VMI's spec is taken and then ignored: each leaf changes what the product
// makes of a VMI, or it is in the table of what is not implemented, or in the list of what is used elsewhere.
package liveness_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
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
	leaves := leavesOf(reflect.TypeFor[v1.VirtualMachineInstanceSpec]())
	count := map[string]int{}
	used := map[string]bool{}
	for _, l := range leaves {
		t.Run(l.path, func(t *testing.T) {
			live, err := isLive(l)
			row := rowOf(l.path)
			where, elsewhere := consumedElsewhere[l.path]
			used[l.path] = elsewhere
			switch {
			case live && elsewhere:
				t.Errorf("changes the outcome, and is on the list of what is used elsewhere (%s)", where)
			case live && row != nil && row.Effect == fieldsupport.Warn && len(row.Values) == 0:
				t.Errorf("changes the outcome, and is on the table of what is not implemented: %s", row.Reason)
			case elsewhere && row != nil:
				t.Errorf("is in two lists: %s; %s", where, row.Reason)
			case live && (row == nil || row.Effect != fieldsupport.Refuse): // What is refused when set may be live when not.
				count["live"]++
			case elsewhere:
				count["used elsewhere"]++
			case row == nil:
				t.Errorf("nothing notices it: %v", err)
			case row.Effect == fieldsupport.Refuse:
				count["refused"]++
			default:
				count["warned about"]++
			}
		})
	}
	for path := range consumedElsewhere {
		if !used[path] {
			t.Errorf("%s is on the list of what is used elsewhere but is no leaf", path)
		}
	}
	share := float64(count["live"]) / float64(len(leaves)) * 100
	t.Logf("%d leaf fields of a VMI's spec: %d live (%.1f %%), %d refused, %d warned about, %d used elsewhere",
		len(leaves), count["live"], share, count["refused"], count["warned about"], count["used elsewhere"])
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
		live, err := differs(l, text, valued(l, text))
		if live {
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
