// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// difference is a difference between Vireo's and KubeVirt's types or schemas at a path.
type difference struct {
	// path is the type's name and the JSON path, with [] for the elements of a list and {} for those of a map.
	path string
	// what is the kind of difference, as in differences.go.
	what string
	// detail describes the difference for the test's output.
	detail string
}

func (d difference) String() string {
	return fmt.Sprintf("%s: %s: %s", d.path, d.what, d.detail)
}

// Kinds of differences between two Go types.
const (
	missingField = "missing"
	addedField   = "added"
	jsonType     = "json type"
	omitEmpty    = "omitempty"
	pointer      = "pointer"
	patchTag     = "patch tag"
)

// walker compares two Go types path by path, as encoding/json sees them.
type walker struct {
	fields      int
	differences []difference
	stack       []reflect.Type
}

func (w *walker) report(path, what, format string, args ...any) {
	w.differences = append(w.differences, difference{path: path, what: what, detail: fmt.Sprintf(format, args...)})
}

var (
	marshaler     = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]()
)

// opaque reports whether a type has its own JSON encoding, so that its Go fields are irrelevant.
func opaque(t reflect.Type) bool {
	for _, candidate := range []reflect.Type{t, reflect.PointerTo(t)} {
		if candidate.Implements(marshaler) || candidate.Implements(textMarshaler) {
			return true
		}
	}
	return false
}

// compare compares two types. Identical types are not descended into.
func (w *walker) compare(path string, upstream, ours reflect.Type) {
	if upstream == ours || slices.Contains(w.stack, upstream) {
		return
	}
	if (upstream.Kind() == reflect.Pointer) != (ours.Kind() == reflect.Pointer) {
		w.report(path, pointer, "%s there, %s here", upstream, ours)
	}
	if upstream.Kind() == reflect.Pointer {
		upstream = upstream.Elem()
	}
	if ours.Kind() == reflect.Pointer {
		ours = ours.Elem()
	}
	if upstream == ours {
		return
	}
	if opaque(upstream) || opaque(ours) {
		if upstream.Name() != ours.Name() || opaque(upstream) != opaque(ours) {
			w.report(path, jsonType, "%s there, %s here", upstream, ours)
		}
		return
	}
	if upstream.Kind() != ours.Kind() {
		w.report(path, jsonType, "%s there, %s here", upstream, ours)
		return
	}
	w.stack = append(w.stack, upstream)
	defer func() { w.stack = w.stack[:len(w.stack)-1] }()
	switch upstream.Kind() {
	case reflect.Struct:
		w.compareStructs(path, upstream, ours)
	case reflect.Slice, reflect.Array:
		w.compare(path+"[]", upstream.Elem(), ours.Elem())
	case reflect.Map:
		w.compare(path+"{key}", upstream.Key(), ours.Key())
		w.compare(path+"{}", upstream.Elem(), ours.Elem())
	}
}

func (w *walker) compareStructs(path string, upstream, ours reflect.Type) {
	theirs, mine := jsonFields(upstream), jsonFields(ours)
	for _, name := range slices.Sorted(maps.Keys(theirs)) {
		there := theirs[name]
		w.fields++
		here, found := mine[name]
		at := path + "." + name
		if !found {
			w.report(at, missingField, "%s has no field for it", ours)
			continue
		}
		if there.omitEmpty != here.omitEmpty {
			w.report(at, omitEmpty, "%v there, %v here", there.omitEmpty, here.omitEmpty)
		}
		if there.patch != here.patch {
			w.report(at, patchTag, "%q there, %q here", there.patch, here.patch)
		}
		w.compare(at, there.typ, here.typ)
	}
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		if _, found := theirs[name]; !found {
			w.report(path+"."+name, addedField, "%s has no field for it", upstream)
		}
	}
}

// field describes a struct's field for encoding/json and strategic merge patches.
type field struct {
	typ       reflect.Type
	omitEmpty bool
	patch     string
}

// jsonFields returns a struct's fields by JSON name, including those of inlined structs.
func jsonFields(t reflect.Type) map[string]field {
	fields := map[string]field{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		if tag == "-" || (!f.IsExported() && !f.Anonymous) {
			continue
		}
		if f.Anonymous && name == "" {
			inlined := f.Type
			if inlined.Kind() == reflect.Pointer {
				inlined = inlined.Elem()
			}
			for name, promoted := range jsonFields(inlined) {
				if _, shadowed := fields[name]; !shadowed {
					fields[name] = promoted
				}
			}
			continue
		}
		if name == "" {
			name = f.Name
		}
		fields[name] = field{
			typ: f.Type,
			omitEmpty: slices.ContainsFunc(strings.Split(options, ","),
				func(o string) bool { return o == omitEmpty || o == "omitzero" }),
			patch: strings.TrimSpace(f.Tag.Get("patchStrategy") + " " + f.Tag.Get("patchMergeKey")),
		}
	}
	return fields
}
