// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"reflect"
	"sync"
	"testing"
)

// bothSchemas loads the source of both sides once: it takes seconds.
var bothSchemas = sync.OnceValues(func() (*schemas, error) {
	var types []reflect.Type
	for _, p := range pairs {
		types = append(types, reflect.TypeOf(p.upstream), reflect.TypeOf(p.ours))
	}
	return loadSchemas(types)
})

// Our schemas say what KubeVirt's say: the same types, the same required fields, the same lists by the same keys. Where
// ours refuse more, KubeVirt's webhooks refuse it too, and the list of differences says so.
func TestSchemasAreEqual(t *testing.T) {
	all, err := bothSchemas()
	if err != nil {
		t.Fatal(err)
	}
	accepted := newAccepted(schemaDifferences)
	for _, p := range pairs {
		if p.recursive {
			continue
		}
		t.Run(p.name(), func(t *testing.T) {
			there, err := all.of(reflect.TypeOf(p.upstream))
			if err != nil {
				t.Fatal(err)
			}
			here, err := all.of(reflect.TypeOf(p.ours))
			if err != nil {
				t.Fatal(err)
			}
			c := &schemaComparison{}
			c.compare(reflect.TypeOf(p.upstream).Name(), &there, &here)
			totals.schemaNodes += c.nodes
			for _, d := range c.differences {
				if !accepted.has(d) {
					t.Errorf("%v", d)
				}
			}
		})
	}
	accepted.checkUsed(t)
}
