// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Digests in the status, and mounts of other containers, do not count.
func TestImageDigestsAreThoseOfTheSpec(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	image := func(name, reference string) corev1.Volume {
		return corev1.Volume{Name: name,
			VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: reference}}}
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{
			image("root", "registry/os@"+digest), image("tag", "registry/os:1"), image("both", "registry/os:1@"+digest),
			image("id", digest), {Name: "empty", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
		Containers: []corev1.Container{
			{Name: "beside", VolumeMounts: []corev1.VolumeMount{{Name: "root", MountPath: "/tag"}}},
			{Name: "compute", VolumeMounts: []corev1.VolumeMount{
				{Name: "root", MountPath: "/root"}, {Name: "tag", MountPath: "/tag"}, {Name: "both", MountPath: "/both"},
				{Name: "id", MountPath: "/id"}, {Name: "empty", MountPath: "/empty"}, {Name: "root", MountPath: "/part", SubPath: "part"},
			}},
		},
	}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "compute", VolumeMounts: []corev1.VolumeMountStatus{{
		Name: "tag", VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: "registry/os@" + digest}},
	}}}}
	want := map[string]string{"/root": digest, "/both": digest}
	if got := ImageDigests(pod); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
