// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// storedPerKind is how many random objects of each kind are written through the API server.
const storedPerKind = 12

// An object that the API server accepts with KubeVirt's schema is accepted with Vireo's, and stored equally.
func TestAPIServerStoresTheSame(t *testing.T) {
	s := mustServer(t)
	base := seed(t)
	for i, p := range pairs {
		if p.crd == "" {
			continue
		}
		t.Run(p.name(), func(t *testing.T) {
			random := rand.New(rand.NewSource(base + int64(i)))
			refused := 0
			for n := range storedPerKind {
				// Some objects are full, some are nearly empty.
				g := &generator{random: random, chance: 0.2 + 0.7*random.Float64(), values: knownValues}
				o, err := s.objects(p, g)
				if err != nil {
					t.Fatal(err)
				}
				content, name := o.next(), fmt.Sprintf("random-%d", n)
				want, err := s.store(t.Context(), o, content, name, true)
				if err != nil {
					refused++
					t.Logf("KubeVirt's schema rejects a random object: %v", err)
					continue
				}
				got, err := s.store(t.Context(), o, content, name, false)
				if err != nil {
					t.Errorf("accepted with KubeVirt's schema, and rejected with ours: %v", err)
					continue
				}
				totals.stored++
				if diff := cmp.Diff(stripped(content, want), stripped(content, got)); diff != "" {
					t.Errorf("object %d of seed %d (-KubeVirt's schema keeps +ours keeps):\n%s", n, base, diff)
				}
				if diff := cmp.Diff(content, stripped(content, got)); diff != "" && cmp.Equal(content, stripped(content, want)) {
					t.Errorf("object %d of seed %d (-sent +kept):\n%s", n, base, diff)
				}
			}
			if refused > storedPerKind/4 {
				t.Errorf("KubeVirt's schema rejected %d of %d random objects: add its rules to the generator (values.go)", refused,
					storedPerKind)
			}
		})
	}
}

// stripped returns an object without metadata that the API server adds, and without parts that were not sent and
// contain only defaults.
func stripped(sent map[string]any, u *unstructured.Unstructured) map[string]any {
	out := map[string]any{}
	for key := range sent {
		out[key] = u.Object[key]
	}
	return out
}
