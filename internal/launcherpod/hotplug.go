// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import (
	"path"

	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// An attachment Pod has the claim of one hotplugged volume, so that the kubelet attaches it to the node of the launcher Pod.
const (
	// AttachmentLabelValue is the value of the label kubevirt.io on an attachment Pod. KubeVirt's.
	AttachmentLabelValue = "hotplug-disk"
	// AttachmentUserAnnotation is on an attachment Pod and contains the UID of the VMI that it is for. KubeVirt has no label for it: the
	// label kubevirt.io/created-by is for launcher Pods, which others find by it.
	AttachmentUserAnnotation = "kubevirt.io/hotplug-vmi-uid"
	// AttachmentContainer is the only container of an attachment Pod. KubeVirt's name.
	AttachmentContainer = layout.AttachmentContainer
	// AttachmentPrefix is the prefix of the names of attachment Pods. KubeVirt's.
	AttachmentPrefix = "hp-volume-"
	// HoldArgument makes TailBinary wait until it is stopped. If the path of a disk image follows, with the size of the disk, the bytes
	// to keep free on the file system, and by how many percent the image may be smaller, it creates the image first unless there is one.
	// KubeVirt's attachment Pods serve a socket.
	HoldArgument = "--hold"
	// AttachmentDevicesDir has a directory per volume with the device of a claim with volumeMode Block. KubeVirt's path.
	AttachmentDevicesDir = "/path"
)

// AttachmentDevice is the path in the attachment Pod of a claim with volumeMode Block. KubeVirt's path.
func AttachmentDevice(volume, claimUID string) string {
	return path.Join(AttachmentDevicesDir, volume, claimUID)
}

// AttachmentDir is the directory in the attachment Pod where a claim with a file system is mounted. KubeVirt's path, unless the image
// has a directory of that name.
func AttachmentDir(volume string) string {
	switch volume {
	case "bin", "boot", "dev", "etc", "home", "lib", "lib64", "media", "mnt", "opt", "path", "proc", "root", "run", "sbin", "srv", "sys",
		"tmp", "usr", "var":
		return path.Join(AttachmentDevicesDir, volume)
	}
	return path.Join("/", volume)
}
