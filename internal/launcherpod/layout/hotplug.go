// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package layout

import (
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"
)

const (
	// HotplugDisksVolume is the emptyDir into which hotplugged volumes are mounted. KubeVirt's name.
	HotplugDisksVolume = "hotplug-disks"
	// HotplugDisksDir is where HotplugDisksVolume is mounted. KubeVirt's path.
	HotplugDisksDir = "/var/run/kubevirt/hotplug-disks"
	// AttachmentContainer is the only container of an attachment Pod. KubeVirt's name.
	AttachmentContainer = "hotplug-disk"
	// attachmentPrefix is how the names of attachment Pods begin. KubeVirt's.
	attachmentPrefix = "hp-volume-"
	// maxPodName is the limit for the name of a Pod, and nameHash the length of the hash at its end.
	maxPodName, nameHash = 63, 8
)

// AttachmentPod returns the name of the attachment Pod of a volume in a launcher Pod. It is a function of both, so that a stale cache
// cannot lead to a second Pod, and virt-broker, which knows the names of Pods only, can check for which launcher one was made.
func AttachmentPod(launcher, volume string) string {
	sum := sha256.Sum256([]byte(launcher + "/" + volume))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:nameHash]
	name := attachmentPrefix + volume
	if limit := maxPodName - nameHash - 1; len(name) > limit {
		name = strings.TrimRight(name[:limit], "-.")
	}
	return name + "-" + hash
}

// IsAttachmentPod reports whether a name can be that of an attachment Pod.
func IsAttachmentPod(name string) bool { return strings.HasPrefix(name, attachmentPrefix) }

var volumeName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// IsVolumeName reports whether a text can be the name of a volume, and so that of a file.
func IsVolumeName(text string) bool { return volumeName.MatchString(text) }

// HotplugDiskName is the name in HotplugDisksDir of a hotplugged volume: of its image, or of its device. KubeVirt's names.
func HotplugDiskName(volume string, block bool) string {
	if block {
		return volume
	}
	return volume + ".img"
}
