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

// unfitError is why a claim can never take a disk of the running guest.
type unfitError struct{ message string }

// Error says why.
func (e *unfitError) Error() string { return e.message }

// checkMovable refuses volumes that no migration copies. KubeVirt's words (pkg/virt-controller/watch/volume-migration).
func checkMovable(template *v1.VirtualMachineInstanceTemplateSpec, vmi *v1.VirtualMachineInstance, changed map[string]string) error {
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
	return &unfitError{"invalid volumes to update with migration: " + strings.Join(faults, " ")}
}

// checkStaying refuses to leave behind a claim that no second node can use.
func checkStaying(vmi *v1.VirtualMachineInstance, changed map[string]string) error {
	volumes := claimsOf(vmi.Spec.Volumes)
	for _, status := range vmi.Status.VolumeStatus {
		info := status.PersistentVolumeClaimInfo
		if info == nil || volumes[status.Name] == "" || changed[status.Name] != "" || slices.Contains(info.AccessModes, corev1.ReadWriteMany) {
			continue
		}
		return &unfitError{fmt.Sprintf("cannot migrate the VM. The volume %s is RWO and not included in the migration volumes", status.Name)}
	}
	return nil
}

// checkSize refuses a claim that is known to be smaller than a disk. What a file system takes for itself only its node can tell.
func checkSize(volume string, size int64, claim *v1.PersistentVolumeClaimInfo) error {
	has := claim.Capacity.Storage().Value()
	if has == 0 {
		has = claim.Requests.Storage().Value()
	}
	if has >= size {
		return nil
	}
	return &unfitError{fmt.Sprintf("cannot migrate volume %s: its disk has %d bytes, and PersistentVolumeClaim %s only %d. Use a larger claim",
		volume, size, claim.ClaimName, has)}
}
