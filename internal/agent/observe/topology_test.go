// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package observe

import (
	"slices"
	"testing"

	"libvirt.org/go/libvirtxml"
)

func TestSiblings(t *testing.T) {
	for text, want := range map[string][]uint{
		"1":                {1},
		"0-1":              {0, 1},
		"1,65":             {1, 65},
		"":                 {1},
		"2-3":              {1}, // not the CPU's own list
		"1-x":              {1},
		"0-99999999999":    {1}, // 99 billion entries
		"1,99999999999999": {1},
		"1,8192":           {1},
	} {
		if got := siblings(libvirtxml.CapsHostNUMACPU{ID: 1, Siblings: text}); !slices.Equal(got, want) {
			t.Errorf("siblings %q: %v, want %v", text, got, want)
		}
	}
}
