// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// unset as a value of a generator leaves a field out.
const unset = "(unset)"

// generator generates random values that are valid by a JSON schema, and by values.go for what the schema does not
// express.
type generator struct {
	random *rand.Rand
	// chance is the probability that an optional field is set.
	chance float64
	// values are the values of fields by suffix of their path. These fields are always set.
	values map[string][]any
}

// value generates a value at a path. The path contains only names: elements of a list have the list's path.
func (g *generator) value(path string, s *apiextensionsv1.JSONSchemaProps) any {
	switch {
	case s.XIntOrString:
		return g.intOrString()
	case len(s.Enum) > 0:
		return g.enum(s)
	}
	switch s.Type {
	case "object":
		return g.object(path, s)
	case "array":
		return g.array(path, s)
	case "string":
		return g.text(s)
	case "boolean":
		return g.random.Intn(2) == 0
	case "integer":
		return g.integer(s)
	case "number":
		return float64(g.integer(s)) + 0.5
	}
	// The schema has no type: any value is valid.
	return map[string]any{"anything": g.word()}
}

// known returns the value from the table with the longest matching suffix of the path.
func (g *generator) known(path string) (any, bool) {
	for rest := path; rest != ""; {
		if choices, found := g.values[rest]; found {
			return pick(g.random, choices), true
		}
		_, shorter, found := strings.Cut(rest, ".")
		if !found {
			return nil, false
		}
		rest = shorter
	}
	return nil, false
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.Intn(len(from))] }

// quantities are in canonical form.
var quantities = []string{"0", "1", "500m", "100Mi", "2Gi", "1500M", "3"}

// words are few, so that two managers of a list set the same keys.
var words = []string{"alpha", "beta", "gamma", "delta", "epsilon", "zeta"}

func (g *generator) word() string { return pick(g.random, words) }

func (g *generator) intOrString() any {
	if g.random.Intn(2) == 0 {
		return int64(g.random.Intn(100))
	}
	return pick(g.random, quantities)
}

func (g *generator) enum(s *apiextensionsv1.JSONSchemaProps) any {
	var value any
	if err := json.Unmarshal(pick(g.random, s.Enum).Raw, &value); err != nil {
		panic(fmt.Sprintf("an enum that is no JSON: %v", err))
	}
	return value
}

func (g *generator) object(path string, s *apiextensionsv1.JSONSchemaProps) map[string]any {
	out := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		known, found := g.known(path + "." + name)
		switch {
		case found && known == unset:
		case found:
			out[name] = known
		case slices.Contains(s.Required, name) || g.random.Float64() < g.chance:
			out[name] = g.value(path+"."+name, &property)
		}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		for range 1 + g.random.Intn(2) {
			out[g.word()] = g.value(path, s.AdditionalProperties.Schema)
		}
	}
	if len(out) == 0 && s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields {
		out["labels"] = map[string]any{"app": g.word()}
	}
	return out
}

func (g *generator) array(path string, s *apiextensionsv1.JSONSchemaProps) []any {
	length := 1 + g.random.Intn(3)
	if s.MinItems != nil {
		length = max(length, int(*s.MinItems))
	}
	if s.MaxItems != nil {
		length = min(length, int(*s.MaxItems))
	}
	unique := s.XListType != nil && *s.XListType != "atomic"
	seen := map[string]bool{}
	out := []any{}
	for range length {
		element := g.value(path, s.Items.Schema)
		if key := listKey(s, element); unique {
			if seen[key] {
				continue
			}
			seen[key] = true
		}
		out = append(out, element)
	}
	return out
}

// listKey returns what must be unique among the elements of a list with keys, or of a set.
func listKey(s *apiextensionsv1.JSONSchemaProps, element any) string {
	object, isObject := element.(map[string]any)
	if !isObject || len(s.XListMapKeys) == 0 {
		return inJSON(element)
	}
	keys := make([]any, 0, len(s.XListMapKeys))
	for _, name := range s.XListMapKeys {
		keys = append(keys, object[name])
	}
	return inJSON(keys)
}

func (g *generator) text(s *apiextensionsv1.JSONSchemaProps) string {
	switch s.Format {
	case "date-time":
		return moment(g.random).Format(time.RFC3339)
	case "byte":
		return "dmlyZW8="
	}
	word := g.word()
	if s.MinLength != nil && int64(len(word)) < *s.MinLength {
		word += strings.Repeat("x", int(*s.MinLength)-len(word))
	}
	if s.MaxLength != nil && int64(len(word)) > *s.MaxLength {
		word = word[:*s.MaxLength]
	}
	return word
}

// moment returns a time in whole seconds, as in JSON.
func moment(r *rand.Rand) time.Time {
	return time.Unix(1_600_000_000+int64(r.Intn(200_000_000)), 0).UTC()
}

func (g *generator) integer(s *apiextensionsv1.JSONSchemaProps) int64 {
	low, high := int64(0), int64(1000)
	if s.Minimum != nil {
		low = int64(*s.Minimum)
		high = max(high, low+10)
	}
	if s.Maximum != nil {
		high = min(high, int64(*s.Maximum))
	}
	return low + g.random.Int63n(high-low+1)
}
