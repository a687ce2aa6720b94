// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// launcherImageAnnotation is ours. It is on a launcher Pod and has the image that was asked for. Admission plugins of clusters replace
// images, by a digest or a mirror's name: compared with the configuration, such a Pod would be outdated for ever, and its guest moved or
// shut down once a minute.
const launcherImageAnnotation = "kubevirt.io/launcher-image"

// NoteLauncherImage writes down in a Pod that is about to be created which launcher image it asks for.
func NoteLauncherImage(pod *corev1.Pod) {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, launcherImageAnnotation, computeImage(pod))
}

// LauncherImage is the launcher image that a Pod was created with.
func LauncherImage(pod *corev1.Pod) string {
	if asked := pod.Annotations[launcherImageAnnotation]; asked != "" {
		return asked
	}
	return computeImage(pod)
}

func computeImage(pod *corev1.Pod) string {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == launcherpod.ComputeContainer {
			return pod.Spec.Containers[i].Image
		}
	}
	return ""
}
