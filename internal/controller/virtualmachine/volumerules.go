// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachine

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// unmovableError is why a migration can never move the volumes.
type unmovableError struct{ message string }

// Error returns the message for the condition RestartRequired.
func (e *unmovableError) Error() string { return e.message }

// checkMovable returns an error for volumes that a migration cannot move. KubeVirt's messages
// (pkg/virt-controller/watch/volume-migration).
func checkMovable(
	template *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance, changed map[string]string,
) error {
	var filesystems, shareable, luns []string
	for i := range template.Spec.Volumes {
		name := template.Spec.Volumes[i].Name
		if changed[name] == "" {
			continue
		}
		devices := &vmi.Spec.Domain.Devices
		if slices.ContainsFunc(devices.Filesystems, func(f v1.Filesystem) bool { return f.Name == name }) {
			filesystems = append(filesystems, name)
			continue
		}
		at := slices.IndexFunc(devices.Disks, func(d v1.Disk) bool { return d.Name == name })
		switch {
		case at < 0:
		case devices.Disks[at].Shareable != nil && *devices.Disks[at].Shareable:
			shareable = append(shareable, name)
		case devices.Disks[at].LUN != nil:
			luns = append(luns, name)
		}
	}
	var faults []string
	for _, found := range []struct {
		kind  string
		names []string
	}{{"filesystems", filesystems}, {"shareable", shareable}, {"luns", luns}} {
		if len(found.names) > 0 {
			faults = append(faults, fmt.Sprintf("%s: %v", found.kind, found.names))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return &unmovableError{"invalid volumes to update with migration: " + strings.Join(faults, " ")}
}

// checkRemaining returns an error if a volume that does not move has a claim that the target node cannot use.
func checkRemaining(vmi *v1.VirtualMachineInstance, changed map[string]string) error {
	volumes := claimsOf(vmi.Spec.Volumes)
	for _, status := range vmi.Status.VolumeStatus {
		info := status.PersistentVolumeClaimInfo
		if info == nil || volumes[status.Name] == "" || changed[status.Name] != "" ||
			slices.Contains(info.AccessModes, corev1.ReadWriteMany) {
			continue
		}
		return &unmovableError{fmt.Sprintf(
			"cannot migrate the VM. The volume %s is RWO and not included in the migration volumes", status.Name)}
	}
	return nil
}

// checkSize returns an error if a claim is known to be smaller than a disk. The overhead of a file system is known only
// on its node.
func checkSize(volume string, size int64, claim *v1.PersistentVolumeClaimInfo) error {
	has := claim.Capacity.Storage().Value()
	if has == 0 {
		has = claim.Requests.Storage().Value()
	}
	if has >= size {
		return nil
	}
	return &unmovableError{fmt.Sprintf(
		"cannot migrate volume %s: its disk has %d bytes, and PersistentVolumeClaim %s only %d. Use a larger claim",
		volume, size, claim.ClaimName, has)}
}
