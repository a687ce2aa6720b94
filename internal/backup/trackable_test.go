// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestTrackable(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	add := func(name string, source v1.VolumeSource, device *v1.Disk) {
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		if device != nil {
			device.Name = name
			vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, *device)
		}
	}
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}
	claim.PersistentVolumeClaim.ClaimName = "c"
	add("claim", claim, &v1.Disk{})
	add("datavolume", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "d"}}, &v1.Disk{DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{}}})
	add("host", v1.VolumeSource{HostDisk: &v1.HostDisk{}}, &v1.Disk{})
	add("image", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}, &v1.Disk{})
	add("files", claim, nil)
	add("cd", claim, &v1.Disk{DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}})
	add("lun", claim, &v1.Disk{DiskDevice: v1.DiskDevice{LUN: &v1.LunTarget{}}})
	add("readonly", claim, &v1.Disk{DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{ReadOnly: true}}})
	add("shared", claim, &v1.Disk{Shareable: ptr.To(true)})
	add("plugged", claim, &v1.Disk{})
	add("moving", claim, &v1.Disk{})
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "plugged", HotplugVolume: &v1.HotplugVolumeStatus{}}, {Name: "claim"}}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "moving"}}
	if diff := cmp.Diff([]string{"claim", "datavolume", "host"}, Trackable(vmi)); diff != "" {
		t.Error(diff)
	}
	// What the guest cannot write to is not in a backup, and keeps no backup from being an incremental one.
	if diff := cmp.Diff([]string{"claim", "datavolume", "host", "lun", "shared", "plugged", "moving"}, Disks(&vmi.Spec)); diff != "" {
		t.Error(diff)
	}
}

func TestWantsTracking(t *testing.T) {
	for state, want := range map[v1.ChangedBlockTrackingState]bool{
		v1.ChangedBlockTrackingUndefined: false, v1.ChangedBlockTrackingPendingRestart: false, v1.ChangedBlockTrackingInitializing: true,
		v1.ChangedBlockTrackingEnabled: true, v1.ChangedBlockTrackingDisabled: false, v1.ChangedBlockTrackingFGDisabled: false,
	} {
		status := &v1.VirtualMachineInstanceStatus{ChangedBlockTracking: &v1.ChangedBlockTrackingStatus{State: state}}
		if got := WantsTracking(status); got != want {
			t.Errorf("%q: got %t", state, got)
		}
	}
	if WantsTracking(&v1.VirtualMachineInstanceStatus{}) {
		t.Error("without a state: got true")
	}
}
