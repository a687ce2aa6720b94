// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"maps"
	"strings"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/podspec"
)

func TestHostCPUSelector(t *testing.T) {
	node := map[string]string{
		v1.HostModelCPULabel + "Skylake": "true", v1.HostModelRequiredFeaturesLabel + "vmx": "true",
		v1.CPUModelLabel + "Penryn": "true", v1.CPUFeatureLabel + "aes": "true",
	}
	got, err := podspec.HostCPUSelector("n1", node, map[string]string{v1.CPUFeatureLabel + "asked": "true", "disk": "ssd"})
	want := map[string]string{
		v1.SupportedHostModelMigrationCPU + "Skylake": "true", v1.CPUFeatureLabel + "vmx": "true", v1.CPUFeatureLabel + "asked": "true",
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("first migration: %v, %v", got, err)
	}
	// It must be able to go back to where it came from, whatever the node that it is on now could do besides.
	node[v1.HostModelCPULabel+"Icelake"] = "true"
	if got, err = podspec.HostCPUSelector("n2", node, want); err != nil || !maps.Equal(got, want) {
		t.Errorf("second migration: %v, %v", got, err)
	}
	if _, err := podspec.HostCPUSelector("n3", nil, nil); err == nil || !strings.Contains(err.Error(), "n3") {
		t.Errorf("a node that says nothing: %v", err)
	}
}
