// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// imageDigest is the digest at the end of a reference by which an image can be pulled. An ID of an image, which some runtimes report,
// has none: it names the image's configuration, by which no registry finds it.
var imageDigest = regexp.MustCompile(`@(sha256:[0-9a-f]{64})$`)

// PinnedImages are the references by which another Pod gets the very images of a launcher Pod, by the names of its volumes. What is
// not in it can only be asked for as it was. The digest is what the reference in the Pod says, or else what the kubelet reports of the
// volume, which it does since Kubernetes 1.35 with the feature gate ImageVolumeWithDigest.
// Source: kubevirt/kubevirt pkg/container-disk, ExtractImageIDsFromSourcePod.
func PinnedImages(own *corev1.Pod) map[string]string {
	reported := map[string]string{}
	for i := range own.Status.ContainerStatuses {
		for _, mount := range own.Status.ContainerStatuses[i].VolumeMounts {
			if status := mount.VolumeStatus; status != nil && status.Image != nil {
				reported[mount.Name] = status.Image.ImageRef
			}
		}
	}
	pinned := map[string]string{}
	for i := range own.Spec.Volumes {
		volume := &own.Spec.Volumes[i]
		if volume.Image == nil {
			continue
		}
		reference := volume.Image.Reference
		if strings.Contains(reference, "@") {
			pinned[volume.Name] = reference // It names a digest, of this kind or of another one.
		} else if found := imageDigest.FindStringSubmatch(reported[volume.Name]); found != nil {
			pinned[volume.Name] = repository(reference) + "@" + found[1]
		}
	}
	return pinned
}

// ImageDigests are the digests of the images that a Pod's spec names by one, by the directories where its container compute has them. The
// volumes of a Pod never change, and the runtime mounts what has the digest: where two Pods have the same, they have the same files. What
// is reported in the status is not in it: a kubelet that is asked for the digest of a tag finds what the tag means by then.
func ImageDigests(pod *corev1.Pod) map[string]string {
	digests := map[string]string{}
	for i := range pod.Spec.Volumes {
		if image := pod.Spec.Volumes[i].Image; image != nil {
			if found := imageDigest.FindStringSubmatch(image.Reference); found != nil {
				digests[pod.Spec.Volumes[i].Name] = found[1]
			}
		}
	}
	mounted := map[string]string{}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name != launcherpod.ComputeContainer {
			continue
		}
		for _, mount := range pod.Spec.Containers[i].VolumeMounts {
			if digest, named := digests[mount.Name]; named && mount.SubPath == "" && mount.SubPathExpr == "" {
				mounted[mount.MountPath] = digest
			}
		}
	}
	return mounted
}

// repository is a reference without its tag. A registry's port is no tag.
func repository(reference string) string {
	if colon := strings.LastIndex(reference, ":"); colon > strings.LastIndex(reference, "/") {
		return reference[:colon]
	}
	return reference
}

func pinImages(spec *corev1.PodSpec, images map[string]string) {
	for i := range spec.Volumes {
		if reference := images[spec.Volumes[i].Name]; reference != "" && spec.Volumes[i].Image != nil {
			spec.Volumes[i].Image.Reference = reference
		}
	}
}
