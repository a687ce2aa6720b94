// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// StateClaim returns the name of the state claim that a Pod uses, or "".
func StateClaim(pod *corev1.Pod) string {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == launcherpod.StateVolume && v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}
