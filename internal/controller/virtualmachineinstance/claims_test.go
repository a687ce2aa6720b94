// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import "testing"

func TestIsPreallocated(t *testing.T) {
	for _, tc := range []struct {
		key, value string
		want       bool
	}{
		{"cdi.kubevirt.io/storage.preallocation", "true", true},
		{"example.com/storage.thick-provisioned", "true", true},
		{"example.com/storage.thick-provisioned", "false", false},
		{"storage.preallocation", "true", false}, // without a prefix it is a user's own annotation
		{"example.com/storage", "true", false},
	} {
		if got := isPreallocated(map[string]string{"other": "true", tc.key: tc.value}); got != tc.want {
			t.Errorf("%s=%s: got %v", tc.key, tc.value, got)
		}
	}
	if isPreallocated(nil) {
		t.Error("a claim without annotations is preallocated")
	}
}
