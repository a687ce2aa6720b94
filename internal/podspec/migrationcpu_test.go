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

func withModel(model string) *v1.VirtualMachineInstance {
	vmi := makeVMI().Obj()
	vmi.Spec.Domain.CPU = &v1.CPU{Model: model}
	return vmi
}

const intel = v1.CPUModelVendorLabel + "Intel"

func TestTargetOfHostModel(t *testing.T) {
	vmi := withModel(v1.CPUModeHostModel)
	node := map[string]string{
		v1.HostModelCPULabel + "Skylake": "true", v1.HostModelRequiredFeaturesLabel + "vmx": "true",
		v1.CPUModelLabel + "Penryn": "true", v1.CPUFeatureLabel + "aes": "true", intel: "true",
	}
	got, err := podspec.TargetCPUSelector(vmi, "n1", node,
		map[string]string{v1.CPUFeatureLabel + "asked": "true", "disk": "ssd"})
	want := map[string]string{
		v1.SupportedHostModelMigrationCPU + "Skylake": "true", v1.CPUFeatureLabel + "vmx": "true",
		v1.CPUFeatureLabel + "aes": "true", v1.CPUFeatureLabel + "asked": "true", intel: "true",
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("first migration: %v, %v", got, err)
	}
	// The guest must be able to migrate back, so the features of its current node do not count.
	node[v1.HostModelCPULabel+"Icelake"] = "true"
	if got, err = podspec.TargetCPUSelector(vmi, "n2", node, want); err != nil || !maps.Equal(got, want) {
		t.Errorf("second migration: %v, %v", got, err)
	}
	if _, err := podspec.TargetCPUSelector(vmi, "n3", nil, nil); err == nil || !strings.Contains(err.Error(), "n3") {
		t.Errorf("a node that says nothing: %v", err)
	}
}

func TestTargetOfHostPassthroughHasTheSameCPU(t *testing.T) {
	vmi := withModel(v1.CPUModeHostPassthrough)
	node := map[string]string{
		v1.HostModelCPULabel + "Skylake": "true", v1.HostModelRequiredFeaturesLabel + "vmx": "true",
		v1.CPUModelLabel + "Penryn": "true", intel: "true",
	}
	want := map[string]string{
		v1.HostModelCPULabel + "Skylake": "true", v1.HostModelRequiredFeaturesLabel + "vmx": "true", intel: "true",
	}
	got, err := podspec.TargetCPUSelector(vmi, "n1", node, map[string]string{"disk": "ssd"})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("first migration: %v, %v", got, err)
	}
	node[v1.HostModelRequiredFeaturesLabel+"avx"] = "true"
	if got, err = podspec.TargetCPUSelector(vmi, "n2", node, want); err != nil || !maps.Equal(got, want) {
		t.Errorf("second migration: %v, %v", got, err)
	}
	if got, err := podspec.TargetCPUSelector(vmi, "n3", nil, nil); err != nil || len(got) != 0 {
		t.Errorf("a node that says nothing: %v, %v", got, err)
	}
}

func TestTargetOfANamedModelHasTheSameVendor(t *testing.T) {
	for _, vmi := range []*v1.VirtualMachineInstance{withModel("Penryn"), withModel(""), {}} {
		node := map[string]string{v1.HostModelCPULabel + "Skylake": "true", v1.CPUFeatureLabel + "aes": "true", intel: "true"}
		got, err := podspec.TargetCPUSelector(vmi, "n1", node, map[string]string{v1.CPUModelVendorLabel + "AMD": "true"})
		if err != nil || !maps.Equal(got, map[string]string{intel: "true"}) {
			t.Errorf("got %v, %v", got, err)
		}
		if got, err = podspec.TargetCPUSelector(vmi, "n1", map[string]string{"disk": "ssd"}, nil); err != nil ||
			len(got) != 0 {
			t.Errorf("a vendor that is not known: %v, %v", got, err)
		}
	}
}
