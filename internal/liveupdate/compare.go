// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveupdate

import (
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// NeedRestart returns the paths of the fields that differ between the template that a running VMI was made from and the one that its VM
// has now, without those whose changes a running guest can have. rollout reports whether the rollout strategy is LiveUpdate. The claims of
// volumes are never among them: whether they can change is decided with them, as for the size of the guest.
func NeedRestart(before, now *v1.VirtualMachineInstanceSpec, vmi *v1.VirtualMachineInstance, rollout bool) []string {
	before, now = before.DeepCopy(), now.DeepCopy()
	for i := range Entries {
		e := &Entries[i]
		if e.adopt != nil && (rollout || !e.Rollout || e.Effect == Migration) {
			e.adopt(before, now, vmi)
		}
	}
	var changed []string
	compare("", reflect.ValueOf(before), reflect.ValueOf(now), &changed)
	return changed
}

// scalars are structs that are scalars in JSON.
var scalars = []reflect.Type{
	reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.Duration](), reflect.TypeFor[metav1.Time](),
}

// compare appends the paths of the fields that differ. It descends into structs, also into those that only one side has, and into lists
// whose elements have names.
func compare(path string, a, b reflect.Value, changed *[]string) {
	if equality.Semantic.DeepEqual(a.Interface(), b.Interface()) {
		return
	}
	found := len(*changed)
	switch {
	case a.Kind() == reflect.Pointer:
		compare(path, valueOf(a), valueOf(b), changed)
	case a.Kind() == reflect.Struct && !slices.Contains(scalars, a.Type()):
		compareStructs(path, a, b, changed)
	case a.Kind() == reflect.Slice:
		compareLists(path, a, b, changed)
	}
	if len(*changed) == found { // a value, or an empty struct that only one side has
		*changed = append(*changed, path)
	}
}

// valueOf returns the value of a pointer, or the empty value.
func valueOf(pointer reflect.Value) reflect.Value {
	if pointer.IsNil() {
		return reflect.Zero(pointer.Type().Elem())
	}
	return pointer.Elem()
}

func compareStructs(path string, a, b reflect.Value, changed *[]string) {
	for i := range a.NumField() {
		field := a.Type().Field(i)
		if !field.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		child := path
		if name != "" {
			child = strings.TrimPrefix(path+"."+name, ".")
		}
		compare(child, a.Field(i), b.Field(i), changed)
	}
}

// compareLists compares lists by the names of their elements. It finds nothing in lists without names, and in a list in another order.
func compareLists(path string, a, b reflect.Value, changed *[]string) {
	before, inA := byName(a)
	after, inB := byName(b)
	if before == nil || after == nil {
		return
	}
	var common, reordered []string
	for _, name := range inA {
		if element, found := after[name]; found {
			common = append(common, name)
			compare(path+"["+printable(name)+"]", before[name], element, changed)
		} else {
			*changed = append(*changed, path+"["+printable(name)+"]")
		}
	}
	for _, name := range inB {
		if _, found := before[name]; found {
			reordered = append(reordered, name)
		} else {
			*changed = append(*changed, path+"["+printable(name)+"]")
		}
	}
	if !slices.Equal(common, reordered) {
		*changed = append(*changed, path)
	}
}

// byName returns the elements of a list, and their names in order. It returns nil if they have none, or two have the same.
func byName(list reflect.Value) (elements map[string]reflect.Value, names []string) {
	elements = map[string]reflect.Value{}
	for i := range list.Len() {
		element := list.Index(i)
		if element.Kind() != reflect.Struct {
			return nil, nil
		}
		field := element.FieldByName("Name")
		if !field.IsValid() || field.Kind() != reflect.String || field.String() == "" || elements[field.String()].IsValid() {
			return nil, nil
		}
		elements[field.String()] = element
		names = append(names, field.String())
	}
	return elements, names
}
