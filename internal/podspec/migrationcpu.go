// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// TargetCPUSelector returns the labels that the target node of a migration must have: the vendor of the source node's CPU, and
// for a guest whose CPU depends on the node of its start also the labels of that CPU. Labels that the source node lacks are not
// required. For host-model that is an error, because then the guest's CPU is not known. podSelector is the node selector of the
// source Pod. Source: kubevirt/kubevirt pkg/virt-controller/watch/migration, and its test of the vendor's label.
func TargetCPUSelector(vmi *v1.VirtualMachineInstance, node string, nodeLabels, podSelector map[string]string) (map[string]string, error) {
	out := labelsWith(nodeLabels, v1.CPUModelVendorLabel)
	switch model(vmi) {
	case v1.CPUModeHostModel:
		host, err := hostModelSelector(node, nodeLabels, podSelector)
		if err != nil {
			return nil, err
		}
		maps.Copy(out, host)
	case v1.CPUModeHostPassthrough:
		maps.Copy(out, samePassthrough(nodeLabels, podSelector))
	}
	return out, nil
}

func labelsWith(labels map[string]string, prefixes ...string) map[string]string {
	out := map[string]string{}
	for key, value := range labels {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			out[key] = value
		}
	}
	return out
}

func model(vmi *v1.VirtualMachineInstance) string {
	if cpu := vmi.Spec.Domain.CPU; cpu != nil {
		return cpu.Model
	}
	return ""
}

// samePassthrough returns the labels of nodes with the same CPU model and features as the node of the guest's start. A guest
// that has been migrated before keeps those of its first node, so that it can be migrated back.
func samePassthrough(nodeLabels, podSelector map[string]string) map[string]string {
	if first := labelsWith(podSelector, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel); len(first) > 0 {
		return first
	}
	return labelsWith(nodeLabels, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel)
}

// hostModelSelector returns the labels of nodes that support the host-model CPU of a guest: the model and the features of the
// node of its start. A guest that has been migrated before has the CPU of its first node, whose labels are in the selector of
// its Pod. Source: kubevirt/kubevirt pkg/virt-controller/watch/migration, prepareNodeSelectorForHostCpuModel.
func hostModelSelector(node string, nodeLabels, podSelector map[string]string) (map[string]string, error) {
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

// IsHostCPULabel reports whether a label of a node selector is for a guest whose CPU depends on the node of its start.
func IsHostCPULabel(key string) bool {
	prefixes := []string{
		v1.SupportedHostModelMigrationCPU, v1.CPUFeatureLabel, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel,
	}
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// DependsOnHostCPU reports whether the guest's CPU depends on the node of its start.
func DependsOnHostCPU(vmi *v1.VirtualMachineInstance) bool {
	return model(vmi) == v1.CPUModeHostModel || model(vmi) == v1.CPUModeHostPassthrough
}
