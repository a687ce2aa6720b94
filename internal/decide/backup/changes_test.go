// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package backup

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestRecordOfChanges(t *testing.T) {
	all := []string{"root", "data"}
	for name, tc := range map[string]struct {
		intent                     Intent
		changes                    Changes
		checkpoint, since, because string
	}{
		"nothing is requested": {Intent{}, Changes{Tracked: all}, "", "", ""},
		"the first one":        {Intent{Checkpoint: "b"}, Changes{Tracked: all}, "b", "", ""},
		"nothing is tracked":   {Intent{Checkpoint: "b", Since: "a"}, Changes{}, "", "", "not tracked of the volumes root, data"},
		"one disk is not tracked": {
			Intent{Checkpoint: "b", Since: "a"}, Changes{Tracked: all[:1], Checkpoints: map[string][]string{"a": all}},
			"", "", "not tracked of the volume data",
		},
		"an incremental one": {
			Intent{Checkpoint: "b", Since: "a"},
			Changes{Tracked: all, Checkpoints: map[string][]string{"a": {"data", "other", "root"}}}, "b", "a", "",
		},
		"the guest was restarted": {
			Intent{Checkpoint: "b", Since: "a"}, Changes{Tracked: all, Checkpoints: map[string][]string{"c": all}},
			"b", "", "does not have the checkpoint a: it was started after that, or migrated without it, or had more checkpoints than a guest keeps",
		},
		"the checkpoint lacks a disk": {
			Intent{Checkpoint: "b", Since: "a"}, Changes{Tracked: all, Checkpoints: map[string][]string{"a": all[1:]}},
			"b", "", "the checkpoint a does not have the volume root",
		},
		"since without a checkpoint": {
			Intent{Since: "a"}, Changes{Tracked: all, Checkpoints: map[string][]string{"a": all}}, "", "", "",
		},
	} {
		tc.intent.ID, tc.intent.Volumes = "x", all
		action, got := Decide(View{Now: now, Intent: &tc.intent, Changes: tc.changes})
		if action != Request || got.ID != "x" || got.Stage != Requested || got.Checkpoint != tc.checkpoint ||
			got.Since != tc.since {
			t.Errorf("%s: action %d with %+v", name, action, got)
		}
		if tc.because == "" && got.FullBecause != "" || !strings.Contains(got.FullBecause, tc.because) {
			t.Errorf("%s: because %q", name, got.FullBecause)
		}
		if got.Incremental() != (tc.since != "") {
			t.Errorf("%s: incremental: %t", name, got.Incremental())
		}
	}
	many := &Intent{Checkpoint: "b", Volumes: strings.Split("abcdefg", "")}
	if got := many.record(now, Changes{}).FullBecause; !strings.HasSuffix(got, "the volumes a, b, c, d, e and 2 more") {
		t.Errorf("seven volumes: %q", got)
	}
}

func TestObsolete(t *testing.T) {
	intent := &Intent{ID: "x", Checkpoint: "new", Since: "last", Kept: []string{"last", "of another tracker"}}
	changes := Changes{Checkpoints: map[string][]string{"of another tracker": nil, "last": nil, "failed": nil,
		"earlier": nil, "new": nil}}
	if diff := cmp.Diff([]string{"earlier", "failed"},
		intent.Obsolete(Record{Checkpoint: "new", Since: "last"}, changes)); diff != "" {
		t.Error(diff)
	}
	if got := intent.Obsolete(Record{}, changes); got != nil {
		t.Errorf("a backup without a checkpoint deletes %v", got)
	}
}

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
	add("datavolume", v1.VolumeSource{DataVolume: &v1.DataVolumeSource{Name: "d"}},
		&v1.Disk{DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{}}})
	add("host", v1.VolumeSource{HostDisk: &v1.HostDisk{}}, &v1.Disk{})
	add("image", v1.VolumeSource{ContainerDisk: &v1.ContainerDiskSource{}}, &v1.Disk{})
	add("files", claim, nil)
	add("cd", claim, &v1.Disk{DiskDevice: v1.DiskDevice{CDRom: &v1.CDRomTarget{}}})
	add("lun", claim, &v1.Disk{DiskDevice: v1.DiskDevice{LUN: &v1.LunTarget{}}})
	add("readonly", claim, &v1.Disk{DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{ReadOnly: true}}})
	add("shared", claim, &v1.Disk{Shareable: ptr.To(true)})
	add("plugged", claim, &v1.Disk{})
	add("moving", claim, &v1.Disk{})
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "plugged", HotplugVolume: &v1.HotplugVolumeStatus{}},
		{Name: "claim"}}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "moving"}}
	if diff := cmp.Diff([]string{"claim", "datavolume", "host"}, Trackable(vmi)); diff != "" {
		t.Error(diff)
	}
	// What the guest cannot write to is not in a backup, and keeps no backup from being an incremental one.
	if diff := cmp.Diff([]string{"claim", "datavolume", "host", "lun", "shared", "plugged", "moving"},
		Disks(&vmi.Spec)); diff != "" {
		t.Error(diff)
	}
}

func TestWantsTracking(t *testing.T) {
	for state, want := range map[v1.ChangedBlockTrackingState]bool{
		v1.ChangedBlockTrackingUndefined: false, v1.ChangedBlockTrackingPendingRestart: false,
		v1.ChangedBlockTrackingInitializing: true,
		v1.ChangedBlockTrackingEnabled:      true, v1.ChangedBlockTrackingDisabled: false,
		v1.ChangedBlockTrackingFGDisabled: false,
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

func TestScratch(t *testing.T) {
	const gibibyte = 1 << 30
	for name, tc := range map[string]struct {
		disks               []uint64
		used                uint64
		capacity, available uint64
		refused, ended      bool
	}{
		"room for all":                        {[]uint64{gibibyte, gibibyte}, 0, 3 * gibibyte, 3 * gibibyte, false, false},
		"room for one of two":                 {[]uint64{gibibyte, gibibyte}, 0, 2 * gibibyte, 2 * gibibyte, true, true},
		"room that root keeps":                {[]uint64{gibibyte}, 0, 10 * gibibyte, gibibyte + 10<<20, true, true},
		"as much as is recommended":           {[]uint64{gibibyte}, 0, 1094 << 20, 1094 << 20, false, false},
		"what the files need is theirs":       {[]uint64{gibibyte}, gibibyte, 3 * gibibyte / 2, gibibyte / 2, true, false},
		"others take what the files may need": {[]uint64{gibibyte}, gibibyte / 2, 2 * gibibyte, gibibyte / 2, true, true},
		"a reported size that overflows":      {[]uint64{math.MaxUint64, math.MaxUint64}, 1, gibibyte, gibibyte, true, true},
		"everything overflows":                {[]uint64{math.MaxUint64}, math.MaxUint64, math.MaxUint64, math.MaxUint64, false, false},
	} {
		s := Scratch{Claim: "backups", Capacity: tc.capacity, Available: tc.available}
		for _, disk := range tc.disks {
			s.Add(ScratchBytes(disk), tc.used/uint64(len(tc.disks)))
		}
		if got := s.Refusal(); (got != "") != tc.refused {
			t.Errorf("%s: the refusal is %q", name, got)
		}
		if got := s.Shortage(); (got != "") != tc.ended {
			t.Errorf("%s: the shortage is %q", name, got)
		}
	}
	s := Scratch{Claim: "backups", Need: ScratchBytes(gibibyte), Capacity: gibibyte, Available: gibibyte / 2}
	for _, part := range []string{"the claim backups", "512Mi are free", "up to 1026Mi", "at least 1222Mi"} {
		if got := s.Refusal(); !strings.Contains(got, part) {
			t.Errorf("%q has no %q", got, part)
		}
	}
}

// TestRecommendedClaims takes the sizes of file systems that mke2fs 1.47 and mkfs.xfs 6.1 make, from what dumpe2fs and
// xfs_db print.
func TestRecommendedClaims(t *testing.T) {
	const xfsReserve = 32 * mebibyte // of the kernel. Source: fs/xfs/xfs_mount.c, xfs_default_resblks
	for _, tc := range []struct {
		fileSystem      string
		claim, capacity uint64 // in MiB
	}{
		{"ext4", 600, 573}, {"ext4", 1024, 973}, {"ext4", 2048, 1945}, {"ext4", 4096, 3951}, {"ext4", 17000, 16560}, {"ext4", 140000, 136718},
		{"ext4", 1100000, 1081634}, {"xfs", 600, 535}, {"xfs", 1024, 959}, {"xfs", 4096, 4031}, {"xfs", 66000, 65935}, {"xfs", 1100000, 1099462},
	} {
		s := &Scratch{Capacity: tc.capacity * mebibyte, Available: tc.capacity * mebibyte}
		if tc.fileSystem == "xfs" {
			s.Available -= xfsReserve
		}
		// The greatest need for which a claim of this size is recommended.
		low, high := uint64(0), tc.claim*mebibyte
		for low < high {
			if s.Need = (low + high + 1) / 2; s.enough() <= tc.claim*mebibyte {
				low = s.Need
			} else {
				high = s.Need - 1
			}
		}
		s.Need = low
		if got := s.Refusal(); got != "" || low == 0 {
			t.Errorf("%s of %d MiB for %s: %s", tc.fileSystem, tc.claim, binary(low), got)
		}
	}
}
