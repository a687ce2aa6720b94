// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package limits

import "testing"

func TestSharesAreDivided(t *testing.T) {
	s := NewShares(100, 0)
	for step, tc := range []struct {
		tenant string
		units  int64
		has    int64
		want   bool
	}{
		{"a", 51, 51, true}, {"a", 1, 51, false}, {"b", 30, 30, true}, {"b", 1, 30, false}, {"c", 9, 9, true}, {"c", 2, 9, false},
	} {
		if has, got := s.Take(tc.tenant, tc.units); got != tc.want || has != tc.has {
			t.Errorf("step %d: got %v and %d with %d free", step, got, has, s.free)
		}
	}
	for tenant, units := range map[string]int64{"a": 51, "b": 30, "c": 9} {
		s.Give(tenant, units)
	}
	if s.free != 100 || len(s.taken) != 0 {
		t.Errorf("%d are free, taken are %v", s.free, s.taken)
	}
}

func TestSharesOfATenantAreLimited(t *testing.T) {
	s := NewShares(10, 2)
	for i, want := range []bool{true, true, false} {
		if _, got := s.Take("a", 1); got != want {
			t.Errorf("unit %d: %v", i+1, got)
		}
	}
	s.Give("a", 1)
	if _, ok := s.Take("a", 1); !ok {
		t.Error("a unit is lost")
	}
	if _, ok := s.Take("b", 2); !ok {
		t.Error("the limit of a tenant applies to another one")
	}
}
