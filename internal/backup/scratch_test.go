// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"math"
	"strings"
	"testing"
)

func TestScratch(t *testing.T) {
	const gibibyte = 1 << 30
	for name, tc := range map[string]struct {
		disks               []uint64
		used                uint64
		capacity, available uint64
		refused, ended      bool
	}{
		"room for all":                        {[]uint64{gibibyte, gibibyte}, 0, 3 * gibibyte, 3 * gibibyte, false, false},
		"room for one of two":                 {[]uint64{gibibyte, gibibyte}, 0, 2 * gibibyte, 2 * gibibyte, true, true},
		"room that root keeps":                {[]uint64{gibibyte}, 0, 10 * gibibyte, gibibyte + 10<<20, true, true},
		"as much as is recommended":           {[]uint64{gibibyte}, 0, 1094 << 20, 1094 << 20, false, false},
		"what the files need is theirs":       {[]uint64{gibibyte}, gibibyte, 3 * gibibyte / 2, gibibyte / 2, true, false},
		"others take what the files may need": {[]uint64{gibibyte}, gibibyte / 2, 2 * gibibyte, gibibyte / 2, true, true},
		"a reported size that overflows":      {[]uint64{math.MaxUint64, math.MaxUint64}, 1, gibibyte, gibibyte, true, true},
		"everything overflows":                {[]uint64{math.MaxUint64}, math.MaxUint64, math.MaxUint64, math.MaxUint64, false, false},
	} {
		s := Scratch{Claim: "backups", Capacity: tc.capacity, Available: tc.available}
		for _, disk := range tc.disks {
			s.Add(ScratchBytes(disk), tc.used/uint64(len(tc.disks)))
		}
		if got := s.Refusal(); (got != "") != tc.refused {
			t.Errorf("%s: the refusal is %q", name, got)
		}
		if got := s.Shortage(); (got != "") != tc.ended {
			t.Errorf("%s: the shortage is %q", name, got)
		}
	}
	s := Scratch{Claim: "backups", Need: ScratchBytes(gibibyte), Capacity: gibibyte, Available: gibibyte / 2}
	for _, part := range []string{"the claim backups", "512Mi are free", "up to 1026Mi", "at least 1094Mi"} {
		if got := s.Refusal(); !strings.Contains(got, part) {
			t.Errorf("%q has no %q", got, part)
		}
	}
}
