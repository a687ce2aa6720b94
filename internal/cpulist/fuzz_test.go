// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cpulist_test

import (
	"slices"
	"testing"

	"github.com/vireo-project/vireo/internal/cpulist"
)

// mostCPUs is the largest number of CPUs that Linux can be built for.
const mostCPUs = 8192

// FuzzParse: a list is refused, or read as a set of CPUs that there can be, in their order.
func FuzzParse(f *testing.F) {
	for _, list := range []string{"", "0", "0-3,8", "3,1-2\n", "0-8191", "8192", "4294967296", "1-0", "0-8191,0-8191", "1,,2", "-1", "0x1"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		cpus, err := cpulist.Parse(list)
		if err != nil {
			if len(err.Error()) > 1<<10 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		for i, cpu := range cpus {
			if cpu >= mostCPUs || i > 0 && cpu <= cpus[i-1] {
				t.Fatalf("%.80q: CPU %d is number %d", list, cpu, i)
			}
		}
		if again, err := cpulist.Parse(cpulist.Format(cpus...)); err != nil || !slices.Equal(again, cpus) {
			t.Errorf("%.80q is not the same when it is written and read again: %v", list, err)
		}
	})
}
