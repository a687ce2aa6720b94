// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package export

import (
	"strings"
	"testing"
)

// A tenant decides how large the content of an exporter's Pod is, and an export is reconciled after each change of what
// it depends on.
func TestContentThatIsServedAlreadyIsNotParsed(t *testing.T) {
	w := vmWorld()
	w.VM.Labels = map[string]string{}
	for i := range 1000 {
		w.VM.Labels["label"+strings.Repeat("x", i%50)] = strings.Repeat("y", i%60)
	}
	w.Pod = next(t, w).Pod
	s := w.source()
	served, _, err := w.content(&s)
	if err != nil || w.Pod.Annotations[ContentAnnotation] != string(served) {
		t.Fatal(err)
	}
	other := false
	if n := testing.AllocsPerRun(10, func() { other = other || w.hasOtherVolumes(&s, served) }); n > 10 || other {
		t.Errorf("%v allocations, other volumes: %t", n, other)
	}
}
