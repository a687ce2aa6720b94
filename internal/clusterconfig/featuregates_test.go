// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/specsupport"
)

func TestTrackedVMs(t *testing.T) {
	labeled := &metav1.LabelSelector{MatchLabels: map[string]string{"backup": "yes"}}
	yes := map[string]string{"backup": "yes", "other": "x"}
	for name, tc := range map[string]struct {
		selectors     *v1.ChangedBlockTrackingSelectors
		none          bool
		vm, namespace bool
		all           bool
	}{
		"nothing":            {nil, true, false, false, false},
		"empty":              {&v1.ChangedBlockTrackingSelectors{}, true, false, false, false},
		"VMs":                {&v1.ChangedBlockTrackingSelectors{VirtualMachineLabelSelector: labeled}, false, true, false, false},
		"namespaces":         {&v1.ChangedBlockTrackingSelectors{NamespaceLabelSelector: labeled}, false, false, true, false},
		"all VMs":            {&v1.ChangedBlockTrackingSelectors{VirtualMachineLabelSelector: &metav1.LabelSelector{}}, false, true, false, true},
		"VMs and namespaces": {&v1.ChangedBlockTrackingSelectors{NamespaceLabelSelector: labeled, VirtualMachineLabelSelector: labeled}, false, true, true, false},
	} {
		kv := &v1.KubeVirt{}
		kv.Spec.Configuration.ChangedBlockTrackingLabelSelectors = tc.selectors
		config, err := FromKubeVirt(kv)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := config.ChangedBlockTracking
		if got.None() != tc.none || got.SelectsVM(yes) != tc.vm || got.SelectsNamespace(yes) != tc.namespace ||
			got.SelectsVM(nil) != tc.all {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestInvalidTrackedVMs(t *testing.T) {
	kv := &v1.KubeVirt{}
	kv.Spec.Configuration.ChangedBlockTrackingLabelSelectors = &v1.ChangedBlockTrackingSelectors{
		VirtualMachineLabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"-": "x"}},
		NamespaceLabelSelector:      &metav1.LabelSelector{},
	}
	config, err := FromKubeVirt(kv)
	if err == nil || !strings.Contains(err.Error(),
		"spec.configuration.changedBlockTrackingLabelSelectors.virtualMachineLabelSelector") {
		t.Errorf("got %v", err)
	}
	if got := config.ChangedBlockTracking; got.VirtualMachines != nil || !got.SelectsNamespace(nil) {
		t.Errorf("got %+v", got)
	}
}

// implementedGates are gates whose features work, or are always on.
var implementedGates = []string{
	"AlignCPUs", "CPUManager", "DeclarativeHotplugVolumes", "ExternalNetResourceInjection", "HostDisk", "ImageVolume",
	"IncrementalBackup", "MigrationStallDetection", "NodeRestriction", "OCIExport", "ObjectGraph",
	"PodSecondaryInterfaceNamingUpgrade",
	"PortRangesSpec", "RebootPolicy", "Snapshot", "UtilityVolumes", "VSOCK", "VmiMemoryOverheadReport",
}

// Each alpha or beta gate is either implemented or in specsupport.UnimplementedGates.
func TestEveryGateIsListed(t *testing.T) {
	for gate, stage := range gates {
		if stage != StageAlpha && stage != StageBeta {
			continue
		}
		_, not := specsupport.UnimplementedGates[gate]
		if implemented := slices.Contains(implementedGates, gate); implemented == not {
			t.Errorf("gate %s: in implementedGates: %t, in UnimplementedGates: %t", gate, implemented, not)
		}
	}
	for gate := range specsupport.UnimplementedGates {
		if _, known := StageOf(gate); !known {
			t.Errorf("KubeVirt has no gate %s", gate)
		}
	}
}
