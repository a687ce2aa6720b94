// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
)

// volumePrefix is how the names of the utility volumes of backups begin.
const volumePrefix = "backup-"

// VolumeName is the name of a backup's utility volume.
func VolumeName(b *v1alpha1.VirtualMachineBackup) string { return volumePrefix + string(b.UID) }

// UIDs returns the UIDs of the backups that have left something in a VMI: an intent, a volume, or a freeze. UIDs of snapshots may be among
// them. A backup is found by it even if its tracker is gone, or was replaced by one of another VM.
func UIDs(vmi *v1.VirtualMachineInstance) []string {
	uids := Holders(vmi)
	if freeze := vmi.Status.SnapshotFreeze; freeze != nil {
		uids = append(uids, freeze.ID)
	}
	for i := range vmi.Status.VolumeStatus {
		uids = appendUID(uids, vmi.Status.VolumeStatus[i].Name)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// Holders returns the UIDs of the backups that have an intent or a utility volume in a VMI. Until both are removed, others wait:
// migrations for either, and backups for the intent. A freeze is only requested while the volume is there, and ends by itself.
func Holders(vmi *v1.VirtualMachineInstance) []string {
	var uids []string
	if intent := vmi.Status.DiskBackup; intent != nil {
		uids = append(uids, intent.ID)
	}
	for i := range vmi.Spec.UtilityVolumes {
		if u := &vmi.Spec.UtilityVolumes[i]; ptr.Deref(u.Type, "") == v1.Backup {
			uids = appendUID(uids, u.Name)
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

func appendUID(uids []string, volume string) []string {
	if uid, is := strings.CutPrefix(volume, volumePrefix); is {
		return append(uids, uid)
	}
	return uids
}

// Has reports whether something of a backup is in a VMI.
func Has(vmi *v1.VirtualMachineInstance, b *v1alpha1.VirtualMachineBackup) bool {
	return slices.Contains(UIDs(vmi), string(b.UID))
}
