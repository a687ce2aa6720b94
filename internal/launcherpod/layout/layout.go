// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package layout names what virt-broker finds in a launcher Pod. It is all that virt-broker has of package launcherpod,
// which has the same names for other processes.
package layout

import (
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strconv"
	"strings"
)

const (
	// ComputeContainer is the container that runs virt-launcher. Tools for KubeVirt select it by this name.
	ComputeContainer = "compute"
	// QEMUUser is the UID and GID of all processes in the launcher Pod, as in KubeVirt.
	QEMUUser = 107
	// DiskImage is the file of the disk in a filesystem claim.
	DiskImage = "disk.img"
	// SocketsVolume is the emptyDir that contains only the sockets to which the agent connects: libvirtd's and those of
	// USBSocketName and BackupSocketName.
	SocketsVolume = "sockets"
	// LibvirtSocketName is the name of libvirtd's socket in SocketsVolume.
	LibvirtSocketName = "libvirt-sock"
	// PostCopyDevice grants QEMU the right to handle faults of its own memory, which post-copy needs: the Pod's seccomp
	// profile does not allow the system call for it. Linux has it since 6.1. Source:
	// Documentation/admin-guide/mm/userfaultfd.rst of Linux, uffd_open in QEMU's util/userfaultfd.c.
	PostCopyDevice = "/dev/userfaultfd"
)

// Directories inside the Pod.
const (
	// ContainerDisksDir has one image volume per containerDisk beneath it.
	ContainerDisksDir = "/var/run/kubevirt/container-disks"
	// KernelBootDir is where the image with the kernel and the initrd is mounted.
	KernelBootDir = "/var/run/kubevirt/kernel-boot"
	// DisksDir has one filesystem volume (claim or host directory) per volume beneath it.
	DisksDir = "/var/run/kubevirt-private/vmi-disks"
	// StateDir is where the claim for the persistent state is mounted. Its content has KubeVirt's names, so that claims
	// of KubeVirt can be used.
	StateDir = "/var/run/kubevirt-private/vm-state"
	// TrackedDisksDir has the overlays of disks whose changed blocks are tracked, in the Pod's ephemeral storage.
	TrackedDisksDir = "/var/run/kubevirt-ephemeral-disks/tracked"
)

// BridgePrefix is the prefix of the bridge between a Pod interface and the guest's tap.
const BridgePrefix = "k6t-"

// Suffixes of volumes with files for the guest.
const (
	UserDataSuffix    = "-udata"
	NetworkDataSuffix = "-ndata"
	FilesSuffix       = "-files"
	// CredentialsSuffix is KubeVirt's.
	CredentialsSuffix = "-access-cred"
)

// MaxVolumeName is the length of a DNS label, the format of names of a Pod's volumes.
const MaxVolumeName = 63

// HasGuestFiles reports whether a name is that of a volume with files for the guest.
func HasGuestFiles(volume string) bool {
	for _, suffix := range []string{UserDataSuffix, NetworkDataSuffix, FilesSuffix, CredentialsSuffix} {
		if len(volume) > len(suffix) && strings.HasSuffix(volume, suffix) {
			return IsVolumeName(volume)
		}
	}
	return false
}

// USBPorts is how many USB devices clients can attach to a guest at the same time. Source: kubevirt.io/api core/v1,
// UsbClientPassthroughMaxNumberOf.
const USBPorts = 4

// USBSocketName is the name in SocketsVolume of the socket of one of the guest's USBPorts, counted from 0. KubeVirt's
// name.
func USBSocketName(port int) string { return "virt-usbredir-" + strconv.Itoa(port) }

// backupSocket is how the names of the sockets begin at which QEMU serves the disks of backups.
const backupSocket = "backup-"

// BackupSocketName is the name in SocketsVolume of the socket at which QEMU serves the disks of a backup, by the
// backup's UID.
func BackupSocketName(id string) string { return backupSocket + id }

// IsBackupSocketName reports whether a name can be that of such a socket.
func IsBackupSocketName(name string) bool {
	id, found := strings.CutPrefix(name, backupSocket)
	return found && IsVolumeName(id)
}

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

// AttachmentPod returns the name of the attachment Pod of a volume in a launcher Pod. It is a function of both, so that
// a stale cache cannot lead to a second Pod, and virt-broker, which knows the names of Pods only, can check for which
// launcher one was made.
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

// HotplugDiskName is the name in HotplugDisksDir of a hotplugged volume: of its image, or of its device. KubeVirt's
// names.
func HotplugDiskName(volume string, block bool) string {
	if block {
		return volume
	}
	return volume + ".img"
}
