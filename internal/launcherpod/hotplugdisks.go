// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcherpod

import "github.com/vireo-project/vireo/internal/launcherpod/layout"

const (
	// HotplugDisksVolume is the emptyDir into which hotplugged volumes are mounted. KubeVirt's name.
	HotplugDisksVolume = layout.HotplugDisksVolume
	// HotplugDisksDir is where HotplugDisksVolume is mounted. KubeVirt's path.
	HotplugDisksDir = layout.HotplugDisksDir
)

// AttachmentPod returns the name of the attachment Pod of a volume in a launcher Pod. It is a function of both, so that a stale cache
// cannot lead to a second Pod, and virt-broker, which knows the names of Pods only, can check for which launcher one was made.
func AttachmentPod(launcher, volume string) string { return layout.AttachmentPod(launcher, volume) }

// HotplugDisk is the path of a hotplugged volume in the launcher Pod.
func HotplugDisk(volume string, block bool) string {
	return layout.HotplugDisksDir + "/" + layout.HotplugDiskName(volume, block)
}
