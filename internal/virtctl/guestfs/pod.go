// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package guestfs

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Names and paths of the image and its container. They are KubeVirt's (pkg/virtctl/guestfs), so that either virtctl
// works with either image.
const (
	imageName     = "libguestfs-tools"
	container     = "libguestfs"
	entrypoint    = "/entrypoint.sh"
	applianceDir  = "/usr/local/lib/guestfs/appliance"
	home          = "/home/guestfs"
	temporary     = "/tmp/guestfs"
	disk          = "/disk"
	device        = "/dev/vda"
	claimVolume   = "volume"
	homeVolume    = "guestfs"
	tempVolume    = "libguestfs-tmp-dir"
	kvmDevice     = "devices.kubevirt.io/kvm"
	podNamePrefix = "libguestfs-tools-"
)

// clusterImage returns the image that virt-api names.
func clusterImage(ctx context.Context, c *cli.CLI) (string, error) {
	api, err := c.Subresources()
	if err != nil {
		return "", err
	}
	info := v1.GuestfsInfo{}
	if err := api.GetGroup(ctx, "guestfs", &info); err != nil {
		return "", fmt.Errorf("could not get guestfs image info: %w", err)
	}
	return reference(info)
}

// reference returns the image's reference.
func reference(info v1.GuestfsInfo) (string, error) {
	image := info.ImagePrefix + imageName
	switch {
	case info.GsImage != "":
		return info.GsImage, nil
	case info.Digest != "":
		image += "@" + info.Digest
	case info.Tag != "":
		image += ":" + info.Tag
	default:
		return "", fmt.Errorf("neither the digest nor the tag for the image has been specified: name the image with --image")
	}
	if info.Registry != "" {
		image = strings.TrimSuffix(info.Registry, "/") + "/" + image
	}
	return image, nil
}

// newPod returns the Pod for a claim. Unless it runs as root, it complies with the restricted Pod security standard.
func newPod(claim client.ObjectKey, o *options, user ids, block bool) *corev1.Pod {
	shell := corev1.Container{
		Name: container, Image: o.image, ImagePullPolicy: corev1.PullPolicy(o.pullPolicy),
		Command: []string{entrypoint}, Stdin: true, TTY: true,
		Env: []corev1.EnvVar{
			// libguestfs runs QEMU directly, with the appliance of the image.
			{Name: "LIBGUESTFS_BACKEND", Value: "direct"},
			{Name: "LIBGUESTFS_PATH", Value: applianceDir},
			{Name: "LIBGUESTFS_TMPDIR", Value: temporary},
			{Name: "HOME", Value: home},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: tempVolume, MountPath: temporary}, {Name: homeVolume, MountPath: home}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	if o.kvm {
		shell.Resources.Limits = corev1.ResourceList{kvmDevice: resource.MustParse("1")}
	}
	if block {
		shell.VolumeDevices = []corev1.VolumeDevice{{Name: claimVolume, DevicePath: device}}
	} else {
		shell.VolumeMounts = append(shell.VolumeMounts, corev1.VolumeMount{Name: claimVolume, MountPath: disk})
		shell.WorkingDir = disk
	}
	emptyDir := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: podNamePrefix + claim.Name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: ptr.To(!o.root), RunAsUser: user.user, RunAsGroup: user.group, FSGroup: user.fsGroup,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{shell},
			Volumes: []corev1.Volume{
				{Name: claimVolume, VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
				}},
				{Name: tempVolume, VolumeSource: emptyDir},
				{Name: homeVolume, VolumeSource: emptyDir},
			},
		},
	}
}

// claimPath returns the path of the claim in the Pod.
func claimPath(pod *corev1.Pod) string {
	if len(pod.Spec.Containers[0].VolumeDevices) > 0 {
		return device
	}
	return disk
}
