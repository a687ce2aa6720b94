// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// newTracked returns a guest whose changed blocks are tracked, with a backup of a tracker that has this checkpoint, or
// none.
func newTracked(t *testing.T, latest string) *cluster {
	c := newCluster(t)
	c.VMI.Status.TrackedVolumes = []string{"root"}
	c.Backup.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"),
		Kind: "VirtualMachineBackupTracker", Name: "t"}
	c.Tracker = &v1alpha1.VirtualMachineBackupTracker{}
	c.Tracker.Spec.Source.Name = "vm"
	if latest != "" {
		c.Tracker.Status = &v1alpha1.VirtualMachineBackupTrackerStatus{
			LatestCheckpoint: &v1alpha1.BackupCheckpoint{Name: latest}}
		c.Checkpoints = []string{latest}
	}
	return c
}

// succeed does what the agent does: it takes from the intent what the guest can do.
func (c *cluster) succeed(since, because string) {
	c.t.Helper()
	record := backup.Record{
		ID: "u", Stage: backup.Succeeded, StartedAt: c.Now, Since: since, FullBecause: because,
		Checkpoint: backup.IntentOf(&c.VMI.Status).Checkpoint,
	}
	c.VMI.Status.DiskBackupRecord = record.Status()
	if s := c.next(); s.RemoveVolume != "backup-u" || s.Checkpoint != nil {
		c.t.Fatalf("the claim is not detached: %+v", s)
	}
	c.unmount()
}

// own is the name of the backup with the time of its creation.
const own = "b-2026-03-01_11-00-00"

func TestTrackerGetsACheckpointOnceItsBackupIsOnTheClaim(t *testing.T) {
	c := newTracked(t, "")
	c.begin()
	if intent := backup.IntentOf(&c.VMI.Status); intent.Checkpoint != own || intent.Since != "" || intent.Kept != nil {
		t.Errorf("the intent is %+v", intent)
	}
	c.succeed("", "")
	s := c.next()
	volumes := []v1alpha1.BackupVolumeInfo{{VolumeName: "root", DiskTarget: "vda"}}
	if s.Checkpoint == nil || s.Checkpoint.Name != own || !s.Checkpoint.CreationTime.Time.Equal(start) ||
		!slices.Equal(s.Checkpoint.Volumes, volumes) {
		t.Fatalf("the checkpoint is %+v", s.Checkpoint)
	}
	if meta.IsStatusConditionTrue(c.Backup.Status.Conditions, string(v1alpha1.ConditionComplete)) {
		t.Error("the backup is complete before the tracker has its checkpoint")
	}
	c.next()
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted,
		"because the tracker had no checkpoint")
	if got := c.Backup.Status; got.Type != v1alpha1.Full || ptr.Deref(got.CheckpointName, "") != own {
		t.Errorf("the status is %+v", got)
	}
}

func TestIncrementalBackup(t *testing.T) {
	c := newTracked(t, "a")
	c.Checkpoints = []string{"a", "of-another"}
	c.begin()
	if intent := backup.IntentOf(&c.VMI.Status); intent.Checkpoint != own || intent.Since != "a" ||
		!slices.Equal(intent.Kept, []string{"a", "of-another"}) {
		t.Errorf("the intent is %+v", intent)
	}
	c.succeed("a", "")
	c.next()
	c.next()
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, "since the checkpoint a")
	if got := c.Backup.Status; got.Type != v1alpha1.Incremental || ptr.Deref(got.CheckpointName, "") != own ||
		c.Tracker.Status.LatestCheckpoint.Name != own {
		t.Errorf("the status is %+v", got)
	}
}

func TestFullBackupsOfATrackerSayWhy(t *testing.T) {
	for name, tc := range map[string]struct {
		change         func(*cluster)
		agent, because string
		checkpoint     bool
	}{
		"it is forced":      {func(c *cluster) { c.Backup.Spec.ForceFullBackup = true }, "", "forceFullBackup", true},
		"it is not tracked": {func(c *cluster) { c.VMI.Status.TrackedVolumes = nil }, "", "changed blocks of the running guest are not tracked", false},
		"the guest is new":  {func(*cluster) {}, "the running guest does not have it", "the running guest does not have it", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTracked(t, "a")
			tc.change(c)
			c.begin()
			c.succeed("", tc.agent)
			if s := c.next(); (s.Checkpoint != nil) != tc.checkpoint {
				t.Errorf("the checkpoint is %+v", s.Checkpoint)
			}
			c.next()
			c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted,
				"It is a full one because "+tc.because)
			if got, want := c.completion(),
				beginsComplete+messageFull+". It is a full one because "+tc.because; !strings.HasPrefix(got, want) ||
				strings.Contains(got, "No tracker has") {
				t.Errorf("the message is %q", got)
			}
			if c.Backup.Status.Type != v1alpha1.Full {
				t.Errorf("the type is %s", c.Backup.Status.Type)
			}
		})
	}
}

func TestBackupThatFailsLeavesTheTracker(t *testing.T) {
	c := newTracked(t, "a")
	c.begin()
	c.VMI.Status.DiskBackupRecord = backup.Record{ID: "u", Stage: backup.Failed, StartedAt: c.Now, Since: "a",
		Checkpoint: own, Problem: "no space left"}.Status()
	c.finish()
	c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonFailed, "no space left")
	if got := c.Tracker.Status.LatestCheckpoint.Name; got != "a" || c.Backup.Status.CheckpointName != nil {
		t.Errorf("the tracker has the checkpoint %s, and the backup %v", got, c.Backup.Status.CheckpointName)
	}
}

func TestIncrementalBackupDoesNotContinueAnotherTracker(t *testing.T) {
	c := newTracked(t, "a")
	c.begin()
	c.succeed("a", "")
	c.Tracker.Status = nil
	if s := c.next(); s.Checkpoint != nil {
		t.Errorf("the new tracker gets %+v", s.Checkpoint)
	}
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted,
		"since the checkpoint a. No tracker has its checkpoint")
	if got := c.Backup.Status.CheckpointName; got != nil {
		t.Errorf("the status names the checkpoint %s, which no tracker has", *got)
	}
}

func TestTrackerGetsNoCheckpointThatWasNotRequested(t *testing.T) {
	c := newTracked(t, "a")
	c.begin()
	c.VMI.Status.DiskBackupRecord = backup.Record{ID: "u", Stage: backup.Succeeded, StartedAt: c.Now, Since: "a",
		Checkpoint: "other"}.Status()
	c.next()
	c.unmount()
	if s := c.next(); s.Checkpoint != nil || s.Status.CheckpointName != nil {
		t.Errorf("the tracker gets %+v, and the backup %v", s.Checkpoint, s.Status.CheckpointName)
	}
}

func TestBackupOfAVMCreatesNoCheckpoint(t *testing.T) {
	c := newCluster(t)
	c.VMI.Status.TrackedVolumes, c.Checkpoints = []string{"root"}, []string{"a"}
	c.begin()
	if intent := backup.IntentOf(&c.VMI.Status); intent.Checkpoint != "" || intent.Since != "" || intent.Kept != nil {
		t.Errorf("the intent is %+v", intent)
	}
}

func TestGuestKeepsAFewCheckpoints(t *testing.T) {
	c := newTracked(t, "a")
	c.Checkpoints = nil
	for i := range 2 * maxKept {
		c.Checkpoints = append(c.Checkpoints, fmt.Sprint(i))
	}
	c.begin()
	if kept := backup.IntentOf(&c.VMI.Status).Kept; len(kept) != maxKept || kept[0] != "a" {
		t.Errorf("it keeps %v", kept)
	}
}

func TestTrackerOfAnotherVMGetsNoCheckpoint(t *testing.T) {
	c := newTracked(t, "")
	c.begin()
	c.succeed("", "")
	c.Tracker.Spec.Source.Name = "another"
	if s := c.next(); s.Checkpoint != nil {
		t.Errorf("the new tracker gets %+v", s.Checkpoint)
	}
}

func TestWithdrawsFromAVMThatIsNotItsSourceAnyMore(t *testing.T) {
	for name, change := range map[string]func(*cluster){
		"the tracker is gone":         func(c *cluster) { c.Tracker = nil },
		"it is one of another VM now": func(c *cluster) { c.Tracker.Spec.Source.Name = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			c := newTracked(t, "")
			c.connectAgent()
			c.next()
			c.mount()
			c.next()
			c.freeze(freeze.Frozen, false, "")
			change(c)
			if s := c.next(); s.Freeze == nil || s.Freeze.End != freeze.Cancel {
				t.Fatalf("the guest stays frozen: %+v", s)
			}
			if s := c.next(); s.RemoveVolume != "backup-u" {
				t.Fatalf("the claim stays attached: %+v", s)
			}
			c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonInitializing, "BackupTracker t ")
		})
	}
}

func TestUIDs(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.UtilityVolumes = []v1.UtilityVolume{
		{Name: "backup-attached", Type: ptr.To(v1.Backup)}, {Name: "backup-dump", Type: ptr.To(v1.MemoryDump)}, {Name: "dump"},
	}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root"}, {Name: "backup-detaching"}, {Name: "backup-attached"}}
	vmi.Status.DiskBackup, vmi.Status.SnapshotFreeze = &v1.DiskBackup{ID: "running"}, &v1.SnapshotFreeze{ID: "freezing"}
	if got, want := UIDs(vmi), []string{"attached", "detaching", "freezing", "running"}; !slices.Equal(got, want) {
		t.Errorf("got %v, not %v", got, want)
	}
	if got, want := Holders(vmi), []string{"attached", "running"}; !slices.Equal(got, want) {
		t.Errorf("others wait for %v, not %v", got, want)
	}
	if got := UIDs(newCluster(t).VMI); len(got) != 0 {
		t.Errorf("a VMI without a backup has %v", got)
	}
}

func TestCheckpointsThatAGuestKeeps(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name, vmi.CreationTimestamp = "vm", metav1.NewTime(start)
	tracker := func(vm, checkpoint string, age time.Duration) v1alpha1.VirtualMachineBackupTracker {
		made := v1alpha1.VirtualMachineBackupTracker{}
		made.Spec.Source.Name = vm
		if checkpoint != "" {
			made.Status = &v1alpha1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: &v1alpha1.BackupCheckpoint{
				Name: checkpoint, CreationTime: ptr.To(metav1.NewTime(start.Add(age))),
			}}
		}
		return made
	}
	got := Checkpoints([]v1alpha1.VirtualMachineBackupTracker{
		tracker("vm", "a", time.Minute), tracker("vm", "b", 3*time.Minute), tracker("vm", "", 0),
		tracker("vm", "of-an-earlier-guest", -time.Minute),
		tracker("other", "of-another-vm", time.Minute), tracker("vm", "c", 2*time.Minute), tracker("vm", "c", 2*time.Minute),
	}, vmi)
	if want := []string{"b", "c", "a"}; !slices.Equal(got, want) {
		t.Errorf("got %v, not %v", got, want)
	}
}

func TestBackupIsCompleteIfItIsDeletedAfterItsTrackerHasTheCheckpoint(t *testing.T) {
	c := newTracked(t, "a")
	c.begin()
	c.succeed("a", "")
	if s := c.next(); s.Checkpoint == nil {
		t.Fatalf("the checkpoint is not stored: %+v", s)
	}
	c.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(c.Now))
	c.next()
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, "since the checkpoint a")
	if s := c.next(); !s.ClearIntent {
		t.Errorf("the intent stays: %+v", s)
	}
}

func TestTrackerDoesNotGetTheCheckpointOfABackupThatIsDeletedBefore(t *testing.T) {
	c := newTracked(t, "a")
	c.begin()
	c.succeed("a", "")
	c.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(c.Now))
	if s := c.next(); s.Checkpoint != nil || !s.ClearIntent {
		t.Errorf("got %+v", s)
	}
	if got := c.Tracker.Status.LatestCheckpoint.Name; got != "a" {
		t.Errorf("the tracker has the checkpoint %s", got)
	}
}

func TestLostCheckpoint(t *testing.T) {
	tracker := &v1alpha1.VirtualMachineBackupTracker{}
	vmi := &v1.VirtualMachineInstance{}
	vmi.CreationTimestamp = metav1.NewTime(start)
	for name, tc := range map[string]struct {
		phase  v1.VirtualMachineInstancePhase
		status *v1alpha1.VirtualMachineBackupTrackerStatus
		want   string
	}{
		"no status":                            {v1.Running, nil, ""},
		"no checkpoint":                        {v1.Running, &v1alpha1.VirtualMachineBackupTrackerStatus{}, ""},
		"that of the guest":                    {v1.Running, withCheckpoint(start), ""},
		"that of an earlier one":               {v1.Running, withCheckpoint(start.Add(-time.Second)), "c"},
		"that of an earlier one, at the start": {v1.Scheduled, withCheckpoint(start.Add(-time.Second)), ""},
	} {
		tracker.Status, vmi.Status.Phase = tc.status, tc.phase
		if got := LostCheckpoint(tracker, vmi); got != tc.want {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func withCheckpoint(created time.Time) *v1alpha1.VirtualMachineBackupTrackerStatus {
	return &v1alpha1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: &v1alpha1.BackupCheckpoint{Name: "c",
		CreationTime: ptr.To(metav1.NewTime(created))}}
}
