// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"bytes"
	"encoding/json"
	"math/rand"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

const (
	// objectsPerType is how many random objects of each type go around.
	objectsPerType = 100
	// fillDepth is deeper than any type that does not contain itself.
	fillDepth = 100
	// recursiveDepth keeps a type that contains itself from growing without end.
	recursiveDepth = 12
)

// An object of KubeVirt's goes through ours and comes back as it was, and ours writes the very JSON that KubeVirt's wrote.
func TestRandomObjectsComeBack(t *testing.T) {
	base := seed(t)
	totals.seed = base
	for i, p := range pairs {
		t.Run(p.name(), func(t *testing.T) {
			depth := fillDepth
			if p.recursive {
				depth = recursiveDepth
			}
			fill := filler(rand.NewSource(base+int64(i)), depth)
			for n := range objectsPerType {
				sent := reflect.New(reflect.TypeOf(p.upstream))
				fill.Fill(sent.Interface())
				roundTrip(t, p, sent.Interface())
				totals.roundTrips++
				if t.Failed() {
					t.Fatalf("object %d of seed %d", n, base)
				}
			}
		})
	}
}

func roundTrip(t *testing.T, p pair, sent any) {
	t.Helper()
	// What the wire does not carry, as the difference between nil and empty, is gone before anything is compared.
	want := reflect.New(reflect.TypeOf(p.upstream)).Interface()
	strictUnmarshal(t, mustMarshal(t, sent), want)
	wire := mustMarshal(t, want)

	ours := reflect.New(reflect.TypeOf(p.ours)).Interface()
	strictUnmarshal(t, wire, ours)
	back := mustMarshal(t, ours)
	if diff := cmp.Diff(generic(t, wire), generic(t, back)); diff != "" {
		t.Errorf("JSON of ours (-KubeVirt's +ours):\n%s", diff)
		return
	}
	got := reflect.New(reflect.TypeOf(p.upstream)).Interface()
	strictUnmarshal(t, back, got)
	if !apiequality.Semantic.DeepEqual(want, got) {
		t.Errorf("object after the way through ours (-sent +received):\n%s", cmp.Diff(want, got))
	}
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("marshal %T: %v", v, err)
	}
	return out
}

// strictUnmarshal fails for fields that the type does not have.
func strictUnmarshal(t *testing.T, data []byte, into any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("unmarshal into %T: %v\n%s", into, err, data)
	}
}

// generic is JSON without types, numbers as they were written.
func generic(t *testing.T, data []byte) any {
	t.Helper()
	var out any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}
