// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package virtualmachineinstance

import (
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// TestSetTracking checks that tracking is reported as enabled exactly if the next backups can be incremental ones.
func TestSetTracking(t *testing.T) {
	cd, plugged := v1.DiskDevice{CDRom: &v1.CDRomTarget{}},
		v1.VolumeStatus{Name: "data", HotplugVolume: &v1.HotplugVolumeStatus{}}
	for name, tc := range map[string]struct {
		device   v1.DiskDevice
		statuses []v1.VolumeStatus
		tracked  []string
		want     v1.ChangedBlockTrackingState
	}{
		"nothing is tracked yet":   {want: v1.ChangedBlockTrackingInitializing},
		"all disks are tracked":    {tracked: []string{"root", "data"}, want: v1.ChangedBlockTrackingEnabled},
		"one is not tracked":       {tracked: []string{"root"}, want: v1.ChangedBlockTrackingInitializing},
		"one is a CD-ROM":          {device: cd, tracked: []string{"root"}, want: v1.ChangedBlockTrackingEnabled},
		"one was plugged in later": {statuses: []v1.VolumeStatus{plugged}, tracked: []string{"root"}, want: v1.ChangedBlockTrackingInitializing},
	} {
		vmi := &v1.VirtualMachineInstance{}
		for _, volume := range []string{"root", "data"} {
			vmi.Spec.Volumes = append(vmi.Spec.Volumes,
				v1.Volume{Name: volume, VolumeSource: v1.VolumeSource{HostDisk: &v1.HostDisk{}}})
		}
		vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}, {Name: "data", DiskDevice: tc.device}}
		vmi.Status.VolumeStatus, vmi.Status.TrackedVolumes = tc.statuses, tc.tracked
		vmi.Status.ChangedBlockTracking = &v1.ChangedBlockTrackingStatus{State: v1.ChangedBlockTrackingInitializing}
		setTracking(&observed{vmi: vmi}, &vmi.Status)
		if got := vmi.Status.ChangedBlockTracking.State; got != tc.want {
			t.Errorf("%s: got %s, not %s", name, got, tc.want)
		}
	}
}
