// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
)

// defaultSeed is used unless WIRECOMPAT_SEED is set. The summary contains the seed.
const defaultSeed int64 = 1900

// seed returns the seed of all random objects.
func seed(t *testing.T) int64 {
	t.Helper()
	text := os.Getenv("WIRECOMPAT_SEED")
	if text == "" {
		return defaultSeed
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("WIRECOMPAT_SEED: %v", err)
	}
	return value
}

// filler returns a filler of Go values with random contents. Its functions generate valid values of special types:
// quantities, times, which have whole seconds in JSON, and raw JSON.
func filler(source rand.Source, depth int) *randfill.Filler {
	return randfill.New().RandSource(source).NilChance(0.3).NumElements(1, 3).MaxDepth(depth).Funcs(
		func(q *resource.Quantity, c randfill.Continue) { *q = resource.MustParse(pick(c.Rand, quantities)) },
		func(v *intstr.IntOrString, c randfill.Continue) {
			if c.Bool() {
				*v = intstr.FromInt32(c.Int31n(100))
			} else {
				*v = intstr.FromString(fmt.Sprintf("%d%%", c.Intn(100)))
			}
		},
		func(v *metav1.Time, c randfill.Continue) { v.Time = moment(c.Rand).Local() },
		func(v *metav1.MicroTime, c randfill.Continue) {
			v.Time = moment(c.Rand).Add(time.Duration(c.Intn(1e6)) * time.Microsecond).Local()
		},
		func(v *metav1.Duration, c randfill.Continue) {
			v.Duration = time.Duration(c.Intn(1e6)) * time.Millisecond
		},
		func(v *runtime.RawExtension, c randfill.Continue) { v.Raw = rawJSON(c.Rand) },
		func(v *apiextensionsv1.JSON, c randfill.Continue) { v.Raw = rawJSON(c.Rand) },
		func(v *metav1.FieldsV1, _ randfill.Continue) { *v = *metav1.NewFieldsV1(`{"f:spec":{}}`) },
	)
}

func rawJSON(r *rand.Rand) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"example.org/v1","kind":"Thing","spec":{"count":%d}}`, r.Intn(100))
}
