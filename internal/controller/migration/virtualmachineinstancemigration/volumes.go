// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstancemigration

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/podspec"
)

// sameClaims reports whether the target's Pod has the claims that the VMI's spec names. The assignment is written with
// an optimistic lock on the VMI, whose volumes are not changed after that until the migration has ended.
func sameClaims(vmi *v1.VirtualMachineInstance, target *corev1.Pod) bool {
	wanted := map[string]bool{}
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		// A hotplugged volume is in an attachment Pod.
		if claim := podspec.ClaimName(v); claim != "" && (!v.IsHotpluggable() || podspec.HasClaim(target, claim)) {
			wanted[claim] = true
		}
	}
	return maps.Equal(wanted, diskClaims(target))
}

// diskClaims returns the claims of a Pod except the one with the guest's persistent state, which no volume of the spec
// names.
func diskClaims(pod *corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.PersistentVolumeClaim != nil && v.Name != launcherpod.StateVolume {
			out[v.PersistentVolumeClaim.ClaimName] = true
		}
	}
	return out
}
