// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec_test

import (
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/podspec"
)

// pinned matches a reference with one digest.
var pinned = regexp.MustCompile(`^[^@]*@sha256:[0-9a-f]{64}$`)

// FuzzPinnedImages checks that the target Pod gets an image of the VMI's repository, whatever the status of the source
// Pod contains.
func FuzzPinnedImages(f *testing.F) {
	digest := "@sha256:" + strings.Repeat("5f", 32)
	f.Add("registry:5000/disk:latest", "registry:5000/disk"+digest)
	f.Add("disk", "sha256:"+strings.Repeat("5f", 32))
	f.Add("disk"+digest, "other"+digest)
	f.Add("disk@sha512:"+strings.Repeat("5f", 64), "disk"+digest)
	f.Add("registry:5000", "other.example/disk"+digest)
	f.Fuzz(func(t *testing.T, reference, reported string) {
		pod := &corev1.Pod{}
		pod.Spec.Volumes = []corev1.Volume{{Name: "disk",
			VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: reference}}}}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{VolumeMounts: []corev1.VolumeMountStatus{{
			Name: "disk", VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: reported}},
		}}}}
		images := podspec.PinnedImages(pod)
		got, ok := images["disk"]
		if !ok && len(images) == 0 {
			return
		}
		if strings.Contains(reference, "@") {
			if got != reference {
				t.Errorf("%q, which names a digest, became %q", reference, got)
			}
			return
		}
		repository, _, _ := strings.Cut(got, "@")
		if !pinned.MatchString(got) || !strings.HasPrefix(reference, repository) {
			t.Errorf("%q and %q are %q", reference, reported, got)
		}
	})
}
