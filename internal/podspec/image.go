// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// launcherImageAnnotation is an annotation of ours on launcher Pods. It has the configured image. Some admission plugins
// replace images, by a digest or the name of a mirror. If the replaced image were compared with the configuration, the Pod
// would always be outdated, and its guest migrated or evicted again and again.
const launcherImageAnnotation = "kubevirt.io/launcher-image"

// NoteLauncherImage records the launcher image of a new Pod in an annotation.
func NoteLauncherImage(pod *corev1.Pod) {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, launcherImageAnnotation, computeImage(pod))
}

// LauncherImage returns the launcher image that a Pod was created with.
func LauncherImage(pod *corev1.Pod) string {
	if image := pod.Annotations[launcherImageAnnotation]; image != "" {
		return image
	}
	return computeImage(pod)
}

func computeImage(pod *corev1.Pod) string {
	if compute := podstate.ComputeContainer(pod); compute != nil {
		return compute.Image
	}
	return ""
}
