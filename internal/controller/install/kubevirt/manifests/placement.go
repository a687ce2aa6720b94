// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package manifests

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// placeInfra adds the placement of the control plane to a Pod that prefers control plane nodes. A placement replaces
// that preference.
func placeInfra(pod *corev1.PodSpec, placement *v1.NodePlacement) {
	if placement != nil && pod.Affinity != nil {
		pod.Affinity.NodeAffinity = nil
	}
	place(pod, placement)
}

// place adds a placement to that of a manifest. As in KubeVirt, the manifest's node selector wins, and terms and
// tolerations are appended to the manifest's.
func place(pod *corev1.PodSpec, placement *v1.NodePlacement) {
	if placement == nil {
		return
	}
	selector := maps.Clone(placement.NodeSelector)
	if selector == nil {
		selector = map[string]string{}
	}
	maps.Copy(selector, pod.NodeSelector)
	if len(selector) > 0 {
		pod.NodeSelector = selector
	}
	pod.Tolerations = append(pod.Tolerations, placement.Tolerations...)
	if placement.Affinity != nil {
		pod.Affinity = mergeAffinity(pod.Affinity, placement.Affinity.DeepCopy())
	}
}

func mergeAffinity(to, from *corev1.Affinity) *corev1.Affinity {
	if to == nil {
		return from
	}
	if n := from.NodeAffinity; n != nil {
		if to.NodeAffinity == nil {
			to.NodeAffinity = &corev1.NodeAffinity{}
		}
		mergeNodeAffinity(to.NodeAffinity, n)
	}
	if p := from.PodAffinity; p != nil {
		if to.PodAffinity == nil {
			to.PodAffinity = &corev1.PodAffinity{}
		}
		t := to.PodAffinity
		t.RequiredDuringSchedulingIgnoredDuringExecution = append(t.RequiredDuringSchedulingIgnoredDuringExecution,
			p.RequiredDuringSchedulingIgnoredDuringExecution...)
		t.PreferredDuringSchedulingIgnoredDuringExecution = append(t.PreferredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if p := from.PodAntiAffinity; p != nil {
		if to.PodAntiAffinity == nil {
			to.PodAntiAffinity = &corev1.PodAntiAffinity{}
		}
		t := to.PodAntiAffinity
		t.RequiredDuringSchedulingIgnoredDuringExecution = append(t.RequiredDuringSchedulingIgnoredDuringExecution,
			p.RequiredDuringSchedulingIgnoredDuringExecution...)
		t.PreferredDuringSchedulingIgnoredDuringExecution = append(t.PreferredDuringSchedulingIgnoredDuringExecution,
			p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	return to
}

func mergeNodeAffinity(to, from *corev1.NodeAffinity) {
	to.PreferredDuringSchedulingIgnoredDuringExecution = append(to.PreferredDuringSchedulingIgnoredDuringExecution,
		from.PreferredDuringSchedulingIgnoredDuringExecution...)
	switch required := from.RequiredDuringSchedulingIgnoredDuringExecution; {
	case required == nil:
	case to.RequiredDuringSchedulingIgnoredDuringExecution == nil:
		to.RequiredDuringSchedulingIgnoredDuringExecution = required
	default:
		terms := &to.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		*terms = append(*terms, required.NodeSelectorTerms...)
	}
}
