// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cpulist_test

import (
	"slices"
	"testing"

	"github.com/vireo-project/vireo/internal/cpulist"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][]uint{
		"": nil, "\n": nil, "0": {0}, "0-2\n": {0, 1, 2}, "4,0-1,1": {0, 1, 4}, "8191": {8191}, "3-2": nil,
	} {
		got, err := cpulist.Parse(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"x", "1,,2", "-1", "8192", "0-99999999999", "0-8191,0-8191"} {
		if got, err := cpulist.Parse(text); err == nil {
			t.Errorf("%q is %d CPUs", text, len(got))
		}
	}
}

func TestFormat(t *testing.T) {
	if got := cpulist.Format(4, 0, 1); got != "4,0,1" {
		t.Errorf("got %q", got)
	}
}
