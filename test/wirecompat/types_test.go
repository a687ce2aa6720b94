// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package wirecompat

import (
	"reflect"
	"testing"
)

// Vireo's types have every JSON path of KubeVirt's, with the same JSON type and optionality.
func TestTypesHaveEveryPath(t *testing.T) {
	accepted := newAccepted(typeDifferences)
	for _, p := range pairs {
		t.Run(p.name(), func(t *testing.T) {
			w := &walker{}
			w.compare(reflect.TypeOf(p.upstream).Name(), reflect.TypeOf(p.upstream), reflect.TypeOf(p.ours))
			totals.fields += w.fields
			for _, d := range w.differences {
				if d.what == missingField {
					totals.missing++
				}
				if !accepted.has(d) {
					t.Errorf("%v", d)
				}
			}
		})
	}
	accepted.checkUsed(t)
}
