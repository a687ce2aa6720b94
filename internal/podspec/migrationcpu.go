// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// HostCPUSelector are the labels of the nodes that can run a guest whose CPU is that of the node it was started on: the model and the
// features that the node gives it. A guest that has migrated before keeps the CPU of its first node, which the selector of the Pod
// it is in now tells. Source: kubevirt/kubevirt pkg/virt-controller/watch/migration, prepareNodeSelectorForHostCpuModel.
func HostCPUSelector(node string, nodeLabels, podSelector map[string]string) (map[string]string, error) {
	out := map[string]string{}
	migrated := false
	for key, value := range podSelector {
		model := strings.HasPrefix(key, v1.SupportedHostModelMigrationCPU)
		if model || strings.HasPrefix(key, v1.CPUFeatureLabel) {
			out[key] = value
			migrated = migrated || model
		}
	}
	if migrated {
		return out, nil
	}
	found := false
	for key, value := range nodeLabels {
		if model, ok := strings.CutPrefix(key, v1.HostModelCPULabel); ok {
			out[v1.SupportedHostModelMigrationCPU+model], found = value, true
		}
		if feature, ok := strings.CutPrefix(key, v1.HostModelRequiredFeaturesLabel); ok {
			out[v1.CPUFeatureLabel+feature] = value
		}
	}
	if !found {
		return nil, fmt.Errorf("node %s has no label %s*: which CPU the guest has is not known", node, v1.HostModelCPULabel)
	}
	return out, nil
}

// UsesHostModel says that the guest's CPU depends on the node that it was started on.
func UsesHostModel(vmi *v1.VirtualMachineInstance) bool {
	cpu := vmi.Spec.Domain.CPU
	return cpu != nil && cpu.Model == v1.CPUModeHostModel
}
