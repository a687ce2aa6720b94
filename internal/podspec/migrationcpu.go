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

// TargetCPUSelector are the labels that a node must have so that a guest that runs on another node can go on there: the vendor of
// that node's CPU for every guest, and more for a guest whose CPU depends on the node that it was started on. What a node does not
// say of its CPU is not asked of the target. Only for host-model that is an error, since the guest's CPU is not known then.
// PodSelector is the node selector of the Pod that the guest is in.
// Source: kubevirt/kubevirt pkg/virt-controller/watch/migration, and its test of the vendor's label.
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

// samePassthrough are the labels of the nodes whose CPU is the one that a guest sees as it is: the same model with the same
// features beyond it. A guest that has migrated before keeps to those of its first node, so that it can go back there.
func samePassthrough(nodeLabels, podSelector map[string]string) map[string]string {
	if first := labelsWith(podSelector, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel); len(first) > 0 {
		return first
	}
	return labelsWith(nodeLabels, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel)
}

// hostModelSelector are the labels of the nodes that can run a guest whose CPU is modeled on that of the node it was started on: the
// model and the features that the node gives it. A guest that has migrated before keeps the CPU of its first node, which the selector
// of the Pod it is in now tells. Source: kubevirt/kubevirt pkg/virt-controller/watch/migration, prepareNodeSelectorForHostCpuModel.
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

// IsHostCPULabel says that a label of a node selector is there because the guest's CPU depends on the node it was started on.
func IsHostCPULabel(key string) bool {
	for _, prefix := range []string{
		v1.SupportedHostModelMigrationCPU, v1.CPUFeatureLabel, v1.HostModelCPULabel, v1.HostModelRequiredFeaturesLabel,
	} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// DependsOnHostCPU says that the guest's CPU depends on the node that it was started on.
func DependsOnHostCPU(vmi *v1.VirtualMachineInstance) bool {
	return model(vmi) == v1.CPUModeHostModel || model(vmi) == v1.CPUModeHostPassthrough
}
