// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancereplicaset

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/test/builder"
)

func TestNames(t *testing.T) {
	named := func(change func(*v1.VirtualMachineInstanceReplicaSet)) *v1.VirtualMachineInstanceReplicaSet {
		return builder.MakeReplicaSet("web").UID("u1").With(change).Obj()
	}
	for _, tc := range []struct {
		name   string
		change func(*v1.VirtualMachineInstanceReplicaSet)
		want   string
	}{
		{"from the set", func(*v1.VirtualMachineInstanceReplicaSet) {}, "web"},
		{"from the template's name", func(s *v1.VirtualMachineInstanceReplicaSet) {
			s.Spec.Template.ObjectMeta.Name, s.Spec.Template.ObjectMeta.GenerateName = "vm-", "other"
		}, "vm-"},
		{"from the template's generateName", func(s *v1.VirtualMachineInstanceReplicaSet) { s.Spec.Template.ObjectMeta.GenerateName = "gen-" }, "gen-"},
		{"truncated as by the API server", func(s *v1.VirtualMachineInstanceReplicaSet) { s.Name = strings.Repeat("a", 80) },
			strings.Repeat("a", 58)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := newNames(named(tc.change)).take()
			if !regexp.MustCompile(`^` + tc.want + `[bcdfghjklmnpqrstvwxz2-9]{5}$`).MatchString(got) {
				t.Errorf("%q does not look like a name that the API server made from %q", got, tc.want)
			}
			if wrong := validation.IsDNS1123Label(got); len(wrong) > 0 {
				t.Errorf("%q: %v", got, wrong)
			}
		})
	}
}

// TestNamesFollowFromExistingVMIs checks what prevents surplus VMIs when the cache is stale.
func TestNamesFollowFromExistingVMIs(t *testing.T) {
	set, other := builder.MakeReplicaSet("web").UID("u1").Obj(), builder.MakeReplicaSet("web").UID("u2").Obj()
	first := newNames(set)
	a, b, c := first.take(), first.take(), first.take()
	if a == b || b == c || a == c {
		t.Fatalf("returned twice: %s %s %s", a, b, c)
	}
	again := newNames(set)
	again.taken[b] = true
	if x, y := again.take(), again.take(); x != a || y != c {
		t.Errorf("got %s and %s with %s taken, want %s and %s", x, y, b, a, c)
	}
	if of := newNames(other).take(); of == a {
		t.Errorf("another set of the same name has the same names")
	}
	many, seen := newNames(set), map[string]bool{}
	for range 5000 {
		name := many.take()
		if seen[name] {
			t.Fatalf("%s was returned twice", name)
		}
		seen[name] = true
	}
}
