// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package loop

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOurs(t *testing.T) {
	all := []device{
		{path: "/dev/loop0", number: 0x700, file: "/srv/theirs", below: 0xfe00},
		{path: "/dev/loop1", number: 0x701, file: "/state/volumes/a", below: 0xfe00},
		{path: "/dev/loop2", number: 0x702, file: "/var/lib/kubelet/plugins/x", below: 0x701},
		{path: "/dev/loop3", number: 0x703, file: "/state-of-another/b", below: 0xfe00},
		{path: "/dev/loop4", number: 0x704, file: "/lock", below: 0x700},
		{path: "/dev/loop5", number: 0x705, file: "/state/volumes/on-a", below: 0x701},
	}
	upper, lower := ours(all, "/state")
	if diff := cmp.Diff([]string{"/dev/loop2"}, upper); diff != "" {
		t.Errorf("upper (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/dev/loop1", "/dev/loop5"}, lower); diff != "" {
		t.Errorf("lower (-want +got):\n%s", diff)
	}
}
