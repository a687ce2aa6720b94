// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Policies of a CPU feature that decide where a guest can run.
const (
	featureRequire = "require"
	featureForbid  = "forbid"
)

const yes = "true"

// schedule fills in what decides about the node.
func schedule(spec *corev1.PodSpec, vmi *v1.VirtualMachineInstance, cfg Config) {
	spec.NodeSelector = nodeSelector(vmi, cfg)
	spec.Affinity = affinity(vmi, cfg)
	spec.Tolerations = vmi.Spec.Tolerations
	spec.TopologySpreadConstraints = vmi.Spec.TopologySpreadConstraints
	spec.PriorityClassName = vmi.Spec.PriorityClassName
	spec.SchedulerName = vmi.Spec.SchedulerName
}

func architecture(vmi *v1.VirtualMachineInstance, cfg Config) string {
	if vmi.Spec.Architecture != "" {
		return vmi.Spec.Architecture
	}
	return cfg.DefaultArchitecture
}

// nodeSelector is the user's and the cluster's, and what the node must be able to do. The latter wins: a VM that
// lands on a node that cannot run it would only fail there.
func nodeSelector(vmi *v1.VirtualMachineInstance, cfg Config) map[string]string {
	out := map[string]string{}
	maps.Copy(out, vmi.Spec.NodeSelector)
	maps.Copy(out, cfg.NodeSelectors)
	out[v1.NodeSchedulable] = yes
	if arch := architecture(vmi, cfg); arch != "" {
		out[corev1.LabelArchStable] = arch
	}
	if vmi.IsCPUDedicated() {
		out[v1.CPUManager] = yes
	}
	if cpu := vmi.Spec.Domain.CPU; cpu != nil && cpu.Realtime != nil {
		out[v1.RealtimeLabel] = yes
	}
	if cfg.UseEmulation {
		return out // QEMU itself is the CPU: the node's does not matter.
	}
	if machine := vmi.Spec.Domain.Machine; machine != nil && machine.Type != "" {
		out[v1.SupportedMachineTypeLabel+machine.Type] = yes
	}
	cpu := vmi.Spec.Domain.CPU
	if cpu == nil {
		return out
	}
	if cpu.Model != "" && cpu.Model != v1.CPUModeHostModel && cpu.Model != v1.CPUModeHostPassthrough {
		out[v1.CPUModelLabel+cpu.Model] = yes
	}
	for _, feature := range cpu.Features {
		if feature.Policy == "" || feature.Policy == featureRequire {
			out[v1.CPUFeatureLabel+feature.Name] = yes
		}
	}
	return out
}

// affinity is the user's, and what a node must not be, which a selector cannot say.
func affinity(vmi *v1.VirtualMachineInstance, cfg Config) *corev1.Affinity {
	unwanted := unwantedLabels(vmi, cfg)
	if len(unwanted) == 0 {
		return vmi.Spec.Affinity
	}
	out := vmi.Spec.Affinity
	if out == nil {
		out = &corev1.Affinity{}
	}
	if out.NodeAffinity == nil {
		out.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		required = &corev1.NodeSelector{}
		out.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required
	}
	if len(required.NodeSelectorTerms) == 0 {
		required.NodeSelectorTerms = []corev1.NodeSelectorTerm{{}}
	}
	// Terms are alternatives, so each of them needs the whole list.
	for i := range required.NodeSelectorTerms {
		term := &required.NodeSelectorTerms[i]
		for _, label := range unwanted {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: label, Operator: corev1.NodeSelectorOpDoesNotExist,
			})
		}
	}
	return out
}

// maxUnwanted is how many labels that a node must not have a Pod can name: those of each nodeSelectorTerm count. The API server stores no
// Pod that has more.
const maxUnwanted = 20_000

// checkAffinity refuses a product of two long lists, for which virt-controller would not have the memory.
func checkAffinity(vmi *v1.VirtualMachineInstance, cfg Config) error {
	if vmi.Spec.Affinity == nil || vmi.Spec.Affinity.NodeAffinity == nil || vmi.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	terms := vmi.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if unwanted := unwantedLabels(vmi, cfg); len(terms)*len(unwanted) > maxUnwanted {
		return fmt.Errorf("each of %d nodeSelectorTerms of spec.affinity would name %d labels that forbidden CPU features ask for, which is too "+
			"large for a Pod: shorten one of the lists", len(terms), len(unwanted))
	}
	return nil
}

func unwantedLabels(vmi *v1.VirtualMachineInstance, cfg Config) []string {
	cpu := vmi.Spec.Domain.CPU
	if cfg.UseEmulation || cpu == nil {
		return nil
	}
	var out []string
	if cpu.Model == v1.CPUModeHostModel {
		out = append(out, v1.NodeHostModelIsObsoleteLabel)
	}
	for _, feature := range cpu.Features {
		if feature.Policy == featureForbid {
			out = append(out, v1.CPUFeatureLabel+feature.Name)
		}
	}
	slices.Sort(out)
	return out
}
