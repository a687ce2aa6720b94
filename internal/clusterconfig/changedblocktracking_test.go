// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package clusterconfig

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
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
		if got.None() != tc.none || got.SelectsVM(yes) != tc.vm || got.SelectsNamespace(yes) != tc.namespace || got.SelectsVM(nil) != tc.all {
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
	if err == nil || !strings.Contains(err.Error(), "spec.configuration.changedBlockTrackingLabelSelectors.virtualMachineLabelSelector") {
		t.Errorf("got %v", err)
	}
	if got := config.ChangedBlockTracking; got.VirtualMachines != nil || !got.SelectsNamespace(nil) {
		t.Errorf("got %+v", got)
	}
}
