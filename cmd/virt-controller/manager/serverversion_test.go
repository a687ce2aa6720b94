// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manager

import (
	"testing"

	apiversion "k8s.io/apimachinery/pkg/version"
)

func TestKnowsContainerRestarts(t *testing.T) {
	for git, want := range map[string]bool{
		"v1.33.7": false, "v1.34.0": true, "v1.36.3": true, "v1.35.1-gke.100": true, "v1.33.4+k3s1": false,
	} {
		if got, err := supportsContainerRestarts(&apiversion.Info{GitVersion: git}); err != nil || got != want {
			t.Errorf("%s: got %t, %v, want %t", git, got, err, want)
		}
	}
	if _, err := supportsContainerRestarts(&apiversion.Info{GitVersion: "unknown"}); err == nil {
		t.Error("an invalid version was accepted")
	}
}
