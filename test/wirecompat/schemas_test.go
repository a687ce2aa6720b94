// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"reflect"
	"sync"
	"testing"
)

// bothSchemas generates the schemas of both sides once, which takes seconds.
var bothSchemas = sync.OnceValues(func() (*schemas, error) {
	var types []reflect.Type
	for _, p := range pairs {
		types = append(types, reflect.TypeOf(p.upstream), reflect.TypeOf(p.ours))
	}
	return loadSchemas(types)
})

// Vireo's schemas have the same types, required fields and list keys as KubeVirt's. Where Vireo's are stricter,
// KubeVirt's webhooks reject the same values, and the list of differences contains the reason.
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
