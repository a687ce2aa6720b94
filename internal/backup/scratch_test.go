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
	for _, part := range []string{"the claim backups", "512Mi are free", "up to 1026Mi", "at least 1222Mi"} {
		if got := s.Refusal(); !strings.Contains(got, part) {
			t.Errorf("%q has no %q", got, part)
		}
	}
}

// TestRecommendedClaims takes the sizes of file systems that mke2fs 1.47 and mkfs.xfs 6.1 make, from what dumpe2fs and xfs_db print.
func TestRecommendedClaims(t *testing.T) {
	const xfsReserve = 32 * mebibyte // of the kernel. Source: fs/xfs/xfs_mount.c, xfs_default_resblks
	for _, tc := range []struct {
		fileSystem      string
		claim, capacity uint64 // in MiB
	}{
		{"ext4", 600, 573}, {"ext4", 1024, 973}, {"ext4", 2048, 1945}, {"ext4", 4096, 3951}, {"ext4", 17000, 16560}, {"ext4", 140000, 136718},
		{"ext4", 1100000, 1081634}, {"xfs", 600, 535}, {"xfs", 1024, 959}, {"xfs", 4096, 4031}, {"xfs", 66000, 65935}, {"xfs", 1100000, 1099462},
	} {
		s := &Scratch{Capacity: tc.capacity * mebibyte, Available: tc.capacity * mebibyte}
		if tc.fileSystem == "xfs" {
			s.Available -= xfsReserve
		}
		// The greatest need for which a claim of this size is recommended.
		low, high := uint64(0), tc.claim*mebibyte
		for low < high {
			if s.Need = (low + high + 1) / 2; s.enough() <= tc.claim*mebibyte {
				low = s.Need
			} else {
				high = s.Need - 1
			}
		}
		s.Need = low
		if got := s.Refusal(); got != "" || low == 0 {
			t.Errorf("%s of %d MiB for %s: %s", tc.fileSystem, tc.claim, binary(low), got)
		}
	}
}
