// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"math/rand"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Clients read fields of a status without asking whether it has them, because KubeVirt's encoder always writes some.
// Vireo's components write what they change, so the schema has to add these.
func TestStatusHasWhatKubeVirtAlwaysWrites(t *testing.T) {
	s := mustServer(t)
	random := rand.New(rand.NewSource(seed(t)))
	for _, p := range pairs {
		if p.crd == "" {
			continue
		}
		t.Run(p.name(), func(t *testing.T) {
			zero := map[string]any{}
			strictUnmarshal(t, mustMarshal(t, reflect.New(reflect.TypeOf(p.upstream)).Interface()), &zero)
			want, _ := zero["status"].(map[string]any)
			if len(want) == 0 {
				return
			}
			o, err := s.objects(p, &generator{random: random, chance: 0.1, values: knownValues})
			if err != nil {
				t.Fatal(err)
			}
			content := o.next()
			delete(content, "status")
			u := o.object(content, "fresh", false)
			if err := s.client.Create(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			check := func(when string) {
				t.Helper()
				status, _ := u.Object["status"].(map[string]any)
				for name, value := range want {
					if diff := cmp.Diff(value, normal(status[name])); diff != "" {
						t.Errorf("%s, status.%s differs (-KubeVirt's +ours):\n%s", when, name, diff)
					}
				}
			}
			check("after the creation")
			patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"conditions":[]}}`))
			if err := s.client.Status().Patch(t.Context(), u, patch); err != nil {
				t.Fatal(err)
			}
			check("after a write of another field")
		})
	}
}

// normal returns a number as encoding/json decodes it.
func normal(value any) any {
	if n, isInt := value.(int64); isInt {
		return float64(n)
	}
	return value
}
