// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package quantity refuses quantities that take hours to read. Kubernetes' parser computes every digit of a number,
// also those of 1e-1000000000, which the pattern of Kubernetes' schemas admits. The schemas of Vireo's
// CustomResourceDefinitions have a stricter pattern; this package is for strings without one, and for objects that no
// schema has validated. It also has the memory of a guest, which may be such a string.
package quantity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// MaxExponentDigits is how many digits an exponent may have. The greatest number that a quantity can be is about 1e19.
const MaxExponentDigits = 2

// Parse is resource.ParseQuantity for a string that a tenant wrote.
func Parse(text string) (resource.Quantity, error) {
	if !bounded(text) {
		return resource.Quantity{}, resource.ErrFormatWrong
	}
	return resource.ParseQuantity(text)
}

// bounded reports whether the exponent of a quantity, or of its JSON, is short enough. It does not check anything else.
func bounded(text string) bool {
	at := strings.IndexAny(text, "eE")
	if at < 0 {
		return true
	}
	digits := strings.TrimRight(strings.TrimLeft(text[at+1:], "+-0"), "\" \t\r\n")
	return len(digits) <= MaxExponentDigits
}

// Check returns an error, which names the field, if the JSON of an object has a quantity that Parse refuses for its
// exponent. What is no JSON of such an object is left to its decoder. Field names are compared as by decoders that
// ignore the case of letters.
func Check(raw []byte, object any) error {
	if !json.Valid(raw) {
		return nil
	}
	return check(raw, reflect.TypeOf(object), "")
}

var quantityType = reflect.TypeFor[resource.Quantity]()

func check(raw []byte, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	raw = bytes.TrimSpace(raw)
	switch {
	case t == quantityType:
		if !bounded(string(raw)) {
			return fmt.Errorf("%s: the exponent may have at most %d digits", strings.TrimPrefix(path, "."), MaxExponentDigits)
		}
	case t.Kind() == reflect.Struct && bytes.HasPrefix(raw, []byte("{")):
		fields := fieldsOf(t)
		return members(raw, func(name string, value []byte) error {
			for field, t := range fields {
				if strings.EqualFold(field, name) {
					return check(value, t, path+"."+name)
				}
			}
			return nil
		})
	case t.Kind() == reflect.Map && bytes.HasPrefix(raw, []byte("{")):
		return members(raw, func(name string, value []byte) error { return check(value, t.Elem(), path+"."+name) })
	case t.Kind() == reflect.Slice && bytes.HasPrefix(raw, []byte("[")):
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return err
		}
		for i, item := range items {
			if err := check(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// members calls a function with each member of a JSON object, also with several of one name: a decoder reads all of
// them.
func members(raw []byte, visit func(name string, value []byte) error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		if name, isText := key.(string); isText {
			if err := visit(name, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// known are the results of fieldsOf.
var known sync.Map

// fieldsOf returns the types of a struct's fields by their names in JSON.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	if fields, found := known.Load(t); found {
		return fields.(map[string]reflect.Type) // nothing else is stored
	}
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		inner := field.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case name == "-":
		case name != "":
			fields[name] = field.Type
		case field.Anonymous && inner.Kind() == reflect.Struct:
			maps.Copy(fields, fieldsOf(inner))
		default:
			fields[field.Name] = field.Type
		}
	}
	known.Store(t, fields)
	return fields
}

// Unmarshal decodes the data of a ControllerRevision, which some users may write and no schema validates, and returns
// the error of Check.
func Unmarshal(data runtime.RawExtension, into any) error {
	if err := Check(data.Raw, into); err != nil {
		return err
	}
	return json.Unmarshal(data.Raw, into)
}

// GuestMemory returns the memory of a guest: what the VMI sets, or else its resources, or one huge page. It returns nil
// if nothing gives it.
func GuestMemory(domain *v1.DomainSpec) *resource.Quantity {
	if domain.Memory != nil && domain.Memory.Guest != nil {
		return domain.Memory.Guest
	}
	for _, list := range []corev1.ResourceList{domain.Resources.Requests, domain.Resources.Limits} {
		if q := list.Memory(); !q.IsZero() {
			return new(q.DeepCopy())
		}
	}
	if domain.Memory == nil || domain.Memory.Hugepages == nil {
		return nil
	}
	if q, err := Parse(domain.Memory.Hugepages.PageSize); err == nil && !q.IsZero() { // Validation reports an invalid one.
		return &q
	}
	return nil
}
