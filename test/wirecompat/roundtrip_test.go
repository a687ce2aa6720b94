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
	// objectsPerType is how many random objects of each type are converted.
	objectsPerType = 100
	// fillDepth exceeds the depth of all types that are not recursive.
	fillDepth = 100
	// recursiveDepth limits the depth of recursive types.
	recursiveDepth = 12
)

// Decoding KubeVirt's JSON to Vireo's type and back loses nothing, and both types encode to the same JSON.
func TestRandomObjectsRoundTrip(t *testing.T) {
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
	// Encode and decode first, to drop what JSON cannot represent, such as the difference between nil and empty.
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
		t.Errorf("object after the round trip (-sent +received):\n%s", cmp.Diff(want, got))
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

// strictUnmarshal fails the test for fields that the type does not have.
func strictUnmarshal(t *testing.T, data []byte, into any) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("unmarshal into %T: %v\n%s", into, err, data)
	}
}

// generic decodes JSON without Go types, and keeps numbers as text.
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
