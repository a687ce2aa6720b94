// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package hypervisor_test

import (
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestCleanLine(t *testing.T) {
	for name, tc := range map[string]struct {
		text, want string
		limit      int
	}{
		"fits":                      {"the guest is silent", "the guest is silent", 100},
		"control characters":        {"a\nb\x00c\x7fd", "a b c d", 100},
		"cut between characters":    {strings.Repeat("ü", 10), "üü", 5},
		"bytes that are not UTF-8":  {"a\xffb", "a\ufffdb", 100},
		"no room for the character": {"ü", "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hypervisor.CleanLine(tc.text, tc.limit); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
