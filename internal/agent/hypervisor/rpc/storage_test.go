// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"math"
	"testing"
	"time"
)

// Only a resize that allocates gets more time, for storage that writes each block.
func TestResizeTimeout(t *testing.T) {
	for name, tc := range map[string]struct {
		bytes       uint64
		filled      bool
		least, most time.Duration
	}{
		"sparse":                 {1 << 40, false, actTimeout, actTimeout},
		"small":                  {1 << 20, true, actTimeout, actTimeout},
		"100 GiB at 50 MB/s":     {100 << 30, true, 36 * time.Minute, 2 * time.Hour},
		"a number out of bounds": {math.MaxUint64, true, actTimeout, math.MaxInt64 / 2},
	} {
		if got := resizeTimeout(tc.bytes, tc.filled); got < tc.least || got > tc.most {
			t.Errorf("%s: %s", name, got)
		}
	}
}
