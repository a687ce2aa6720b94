// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podspec

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/vireo-project/vireo/internal/launcherpod/podstate"
)

// imageDigest matches the digest at the end of an image reference. The image IDs that some runtimes report do not match: they
// identify the image's configuration, and an image cannot be pulled by them.
var imageDigest = regexp.MustCompile(`@(sha256:[0-9a-f]{64})$`)

// PinnedImages returns references with digests to the image volumes of a launcher Pod, by name of the volume, so that another
// Pod gets the same images. It omits volumes whose digest is not known. The digest is that of the Pod's spec, or else of its
// status, which has it since Kubernetes 1.35 with the feature gate ImageVolumeWithDigest. Source: kubevirt/kubevirt
// pkg/container-disk, ExtractImageIDsFromSourcePod.
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
			pinned[volume.Name] = reference // It has a digest, of any algorithm.
		} else if found := imageDigest.FindStringSubmatch(reported[volume.Name]); found != nil {
			pinned[volume.Name] = repository(reference) + "@" + found[1]
		}
	}
	return pinned
}

// ImageDigests returns the digests in the image references of a Pod's spec, by mount path in the container compute. The volumes
// of a Pod are immutable, so that two Pods with the same digest have the same files. It does not use the digests of the status:
// the kubelet resolves a tag when it reports the status, and the tag may have moved since it was pulled.
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
	compute := podstate.ComputeContainer(pod)
	if compute == nil {
		return mounted
	}
	for _, mount := range compute.VolumeMounts {
		if digest, named := digests[mount.Name]; named && mount.SubPath == "" && mount.SubPathExpr == "" {
			mounted[mount.MountPath] = digest
		}
	}
	return mounted
}

// repository returns a reference without its tag. A port of the registry is not a tag.
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
