// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package liveness_test

import (
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// leaf is a field of a spec without subfields. In its JSON path [] stands for the elements of a list.
type leaf struct {
	path string
	typ  reflect.Type
}

// scalars are structs that are scalars in JSON.
var scalars = map[reflect.Type]bool{
	reflect.TypeFor[resource.Quantity]():  true,
	reflect.TypeFor[intstr.IntOrString](): true,
	reflect.TypeFor[metav1.Duration]():    true,
	reflect.TypeFor[metav1.Time]():        true,
}

// leavesOf lists the leaves of a type in the order of its fields.
func leavesOf(typ reflect.Type) []leaf { return below(typ, "") }

func below(typ reflect.Type, path string) []leaf {
	switch {
	case typ.Kind() == reflect.Pointer:
		return below(typ.Elem(), path)
	case typ.Kind() == reflect.Slice && element(typ).Kind() == reflect.Struct && !scalars[element(typ)]:
		return below(element(typ), path+"[]")
	case typ.Kind() != reflect.Struct || scalars[typ]:
		return []leaf{{path, typ}}
	}
	fields := fieldsOf(typ)
	if len(fields) == 0 {
		return []leaf{{path, typ}}
	}
	var leaves []leaf
	for _, f := range fields {
		leaves = append(leaves, below(f.typ, strings.TrimPrefix(path+"."+f.name, "."))...)
	}
	return leaves
}

// element returns the element type of a slice, without the pointer.
func element(slice reflect.Type) reflect.Type {
	e := slice.Elem()
	if e.Kind() == reflect.Pointer {
		e = e.Elem()
	}
	return e
}

// jsonField is a field with its JSON name.
type jsonField struct {
	name  string
	typ   reflect.Type
	index []int
}

// fieldsOf returns the fields of a struct in JSON, including those of inlined structs.
func fieldsOf(typ reflect.Type) []jsonField {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	var fields []jsonField
	for f := range typ.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name == "" && (f.Anonymous || strings.Contains(options, "inline")):
			for _, inner := range fieldsOf(f.Type) {
				inner.index = append([]int{f.Index[0]}, inner.index...)
				fields = append(fields, inner)
			}
		case name != "":
			fields = append(fields, jsonField{name: name, typ: f.Type, index: f.Index})
		}
	}
	return fields
}

// at returns a leaf of an object. It fills the pointers on the path, and adds a first element to lists.
func at(object reflect.Value, path string) reflect.Value {
	for _, step := range strings.Split(path, ".") {
		name, each := strings.CutSuffix(step, "[]")
		object = fill(object)
		for _, f := range fieldsOf(object.Type()) {
			if f.name == name {
				for _, i := range f.index {
					object = fill(object).Field(i)
				}
				break
			}
		}
		if each {
			if object.Len() == 0 {
				object.Set(reflect.Append(object, reflect.Zero(object.Type().Elem())))
			}
			object = object.Index(0)
		}
	}
	return object
}

// fill dereferences a pointer. It sets a nil pointer to a new value.
func fill(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	return v
}
