// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
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
	"github.com/vireo-project/vireo/internal/vmistatus"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// cluster is what a backup acts on. It applies steps as the reconciler does.
type cluster struct {
	Observed
	t *testing.T
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t}
	c.Now = start
	c.Backup = &v1alpha1.VirtualMachineBackup{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "b", UID: "u", CreationTimestamp: metav1.NewTime(start.Add(-time.Hour)),
	}}
	c.Backup.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("kubevirt.io"), Kind: "VirtualMachine",
		Name: "vm"}
	c.Backup.Spec.PvcName = ptr.To("backups")
	c.Claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "backups"}}
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}, {Name: "seed"}}
	vmi.Spec.Volumes = []v1.Volume{{Name: "root"},
		{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{}}}}
	vmi.Spec.Volumes[0].PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{}
	vmi.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "root-claim"
	vmi.Status.Phase = v1.Running
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root", Target: "vda"}}
	c.VMI = vmi
	return c
}

// next plans and applies one step, and returns it.
func (c *cluster) next() Step {
	c.t.Helper()
	s := Next(c.Observed)
	changes := 0
	for _, set := range []bool{
		s.AddVolume != nil, s.RemoveVolume != "", s.Freeze != nil, s.ClearFreeze, s.Intent != nil, s.ClearIntent,
		s.Checkpoint != nil, s.Export != nil, s.DeleteExport, s.Done,
	} {
		if set {
			changes++
		}
	}
	if changes > 1 {
		c.t.Fatalf("more than one change in a step: %+v", s)
	}
	c.Backup.Status = &s.Status
	c.apply(s)
	return s
}

// apply makes the change of a step.
func (c *cluster) apply(s Step) {
	switch {
	case s.AddVolume != nil:
		c.VMI.Spec.UtilityVolumes = append(c.VMI.Spec.UtilityVolumes, *s.AddVolume)
	case s.RemoveVolume != "":
		c.VMI.Spec.UtilityVolumes = slices.DeleteFunc(c.VMI.Spec.UtilityVolumes,
			func(v v1.UtilityVolume) bool { return v.Name == s.RemoveVolume })
	case s.Freeze != nil:
		c.VMI.Status.SnapshotFreeze = s.Freeze.Status()
	case s.ClearFreeze:
		c.VMI.Status.SnapshotFreeze = nil
	case s.Intent != nil:
		c.VMI.Status.DiskBackup = s.Intent.Status()
	case s.ClearIntent:
		c.VMI.Status.DiskBackup = nil
	case s.Export != nil:
		c.Export = s.Export
		c.Export.UID = "export-uid"
	case s.DeleteExport:
		c.Export, c.ExportPod = nil, nil
	case s.Checkpoint != nil:
		c.Tracker.Status = &v1alpha1.VirtualMachineBackupTrackerStatus{LatestCheckpoint: s.Checkpoint}
	}
}

// mount does what the agent does with the utility volume, and unmount the opposite.
func (c *cluster) mount() {
	c.VMI.Status.VolumeStatus = append(c.VMI.Status.VolumeStatus,
		v1.VolumeStatus{Name: "backup-u", Phase: v1.HotplugVolumeMounted})
}

func (c *cluster) unmount() { c.VMI.Status.VolumeStatus = c.VMI.Status.VolumeStatus[:1] }

// record does what the agent does for the intent.
func (c *cluster) record(stage backup.Stage, problem string) {
	c.VMI.Status.DiskBackupRecord = backup.Record{ID: "u", Stage: stage, StartedAt: c.Now, Problem: problem}.Status()
}

func (c *cluster) freeze(stage freeze.Stage, kept bool, problem string) {
	deadline := c.VMI.Status.SnapshotFreeze.Deadline.Time
	c.VMI.Status.SnapshotFreezeRecord = freeze.Record{ID: "u", Stage: stage, Kept: kept, Deadline: deadline,
		Problem: problem}.Status()
}

func (c *cluster) connectAgent() {
	c.VMI.Status.Conditions = append(c.VMI.Status.Conditions, v1.VirtualMachineInstanceCondition{
		Type: v1.VirtualMachineInstanceAgentConnected, Status: corev1.ConditionTrue,
	})
}

// expect checks a condition: its status, its reason, and a part of its message.
func (c *cluster) expect(kind v1alpha1.ConditionType, status metav1.ConditionStatus, reason, message string) {
	c.t.Helper()
	got := meta.FindStatusCondition(c.Backup.Status.Conditions, string(kind))
	if got == nil || got.Status != status || got.Reason != reason || !strings.Contains(got.Message, message) {
		c.t.Errorf("condition %s is %+v, not %s, %s, %q", kind, got, status, reason, message)
	}
}

// begin brings a backup without a freeze to the stage Running.
func (c *cluster) begin() {
	c.t.Helper()
	if s := c.next(); s.AddVolume == nil || s.AddVolume.ClaimName != "backups" || s.AddVolume.Name != "backup-u" {
		c.t.Fatalf("the claim is not attached: %+v", s)
	}
	if s := c.next(); s.AddVolume != nil || s.Intent != nil {
		c.t.Fatalf("something happens before the claim is there: %+v", s)
	}
	c.mount()
	if s := c.next(); s.Intent == nil || s.Intent.File("root") != "vm/"+own+"/b-root.qcow2" ||
		!slices.Equal(s.Intent.Volumes, []string{"root"}) {
		c.t.Fatalf("the backup is not requested: %+v", s)
	}
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonInitializing, "")
	c.record(backup.Running, "")
	c.next()
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonInitiated, "being copied")
}

// finish brings an ended backup to its end.
func (c *cluster) finish() {
	c.t.Helper()
	if s := c.next(); s.RemoveVolume != "backup-u" {
		c.t.Fatalf("the claim is not detached: %+v", s)
	}
	c.next()
	if meta.IsStatusConditionTrue(c.Backup.Status.Conditions, string(v1alpha1.ConditionComplete)) {
		c.t.Error("the backup is complete before its claim is detached")
	}
	c.unmount()
	c.next()
	if s := c.next(); !s.ClearIntent {
		c.t.Fatalf("the intent stays: %+v", s)
	}
	if s := c.next(); !s.Done {
		c.t.Fatalf("something is left: %+v", s)
	}
}

func TestBackup(t *testing.T) {
	c := newCluster(t)
	c.begin()
	c.expect(v1alpha1.ConditionQuiesced, metav1.ConditionFalse, v1alpha1.ReasonQuiesceSkipped, "no agent")
	if got := c.Backup.Status; got.Type != v1alpha1.Full || len(got.IncludedVolumes) != 1 ||
		got.IncludedVolumes[0].DiskTarget != "vda" || got.CheckpointName != nil {
		t.Errorf("the status is %+v", got)
	}
	c.record(backup.Succeeded, "")
	c.finish()
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, messageFull)
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonCompleted, "")
}

func TestBackupThatFails(t *testing.T) {
	c := newCluster(t)
	c.begin()
	c.record(backup.Failed, "no space left")
	c.finish()
	c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonFailed, "no space left")
}

func TestFreeze(t *testing.T) {
	for name, tc := range map[string]struct {
		frozen, thawed         freeze.Stage
		kept                   bool
		status                 metav1.ConditionStatus
		reason, message, ended string
	}{
		"kept":     {freeze.Frozen, freeze.Thawed, true, metav1.ConditionTrue, v1alpha1.ReasonQuiesceSucceeded, "", v1alpha1.ReasonCompleted},
		"not kept": {freeze.Frozen, freeze.Thawed, false, metav1.ConditionFalse, v1alpha1.ReasonQuiesceFailed, "because", v1alpha1.ReasonCompletedWithWarning},
		"refused":  {freeze.Failed, freeze.Failed, false, metav1.ConditionFalse, v1alpha1.ReasonQuiesceFailed, "because", v1alpha1.ReasonCompletedWithWarning},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.connectAgent()
			c.next()
			c.mount()
			if s := c.next(); s.Freeze == nil || s.Freeze.ID != "u" || s.Freeze.Deadline.Sub(start) != freezeLimit {
				t.Fatalf("no freeze is requested: %+v", s)
			}
			if s := c.next(); s.Intent != nil || s.After != freezeLimit {
				t.Fatalf("the backup does not wait for the freeze: %+v", s)
			}
			c.freeze(tc.frozen, false, "because")
			for range 5 {
				if c.next().Intent != nil {
					break
				}
			}
			if c.VMI.Status.DiskBackup == nil {
				t.Fatal("the backup is never requested")
			}
			c.record(backup.Requested, "")
			for range 3 {
				if s := c.next(); s.Freeze != nil && s.Freeze.End == freeze.Release {
					t.Fatal("the guest is thawed before the backup has begun")
				}
			}
			c.record(backup.Running, "")
			c.next()
			if c.VMI.Status.SnapshotFreeze != nil {
				c.freeze(tc.thawed, tc.kept, "because")
			}
			c.next()
			c.expect(v1alpha1.ConditionQuiesced, tc.status, tc.reason, tc.message)
			if c.VMI.Status.SnapshotFreeze != nil {
				t.Error("snapshots of the guest have to wait for the freeze's deadline")
			}
			// A snapshot replaces the freeze.
			c.VMI.Status.SnapshotFreeze = (&freeze.Intent{ID: "other", Deadline: c.Now.Add(time.Minute)}).Status()
			c.record(backup.Succeeded, "")
			c.finish()
			c.expect(v1alpha1.ConditionQuiesced, tc.status, tc.reason, tc.message)
			c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, tc.ended, tc.message)
		})
	}
}

func TestFreezeEndsAtItsDeadline(t *testing.T) {
	c := newCluster(t)
	c.connectAgent()
	c.next()
	c.mount()
	c.next()
	c.Now = c.Now.Add(freezeLimit)
	if s := c.next(); s.Freeze == nil || s.Freeze.End != freeze.Cancel {
		t.Fatalf("the freeze is not canceled: %+v", s)
	}
	if s := c.next(); s.Intent == nil {
		t.Fatalf("the backup is not requested without a freeze: %+v", s)
	}
}

func TestGuestThatEnds(t *testing.T) {
	for name, end := range map[string]func(*cluster){
		"no VMI":      func(c *cluster) { c.VMI = nil },
		"another VMI": func(c *cluster) { c.VMI = newCluster(c.t).VMI },
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.begin()
			end(c)
			c.next()
			c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonSourceLost, "stopped")
			if s := c.next(); !s.Done {
				t.Errorf("something is left: %+v", s)
			}
		})
	}
}

func TestDeletion(t *testing.T) {
	deleted := func(c *cluster) { c.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(start)) }
	t.Run("before it starts", func(t *testing.T) {
		c := newCluster(t)
		c.next()
		c.mount()
		deleted(c)
		if s := c.next(); s.RemoveVolume == "" {
			t.Fatalf("the claim stays: %+v", s)
		}
		c.unmount()
		if s := c.next(); !s.Done {
			t.Fatalf("something is left: %+v", s)
		}
	})
	t.Run("while the guest is frozen", func(t *testing.T) {
		c := newCluster(t)
		c.connectAgent()
		c.next()
		c.mount()
		c.next()
		c.freeze(freeze.Frozen, false, "")
		deleted(c)
		if s := c.next(); s.Freeze == nil || s.Freeze.End != freeze.Cancel {
			t.Fatalf("the guest stays frozen: %+v", s)
		}
		if s := c.next(); s.RemoveVolume == "" {
			t.Fatalf("the claim stays: %+v", s)
		}
	})
	t.Run("while it runs", func(t *testing.T) {
		c := newCluster(t)
		c.begin()
		deleted(c)
		if s := c.next(); s.Intent == nil || !s.Intent.Canceled {
			t.Fatalf("it is not canceled: %+v", s)
		}
		c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonAborting, "")
		if s := c.next(); s.RemoveVolume != "" || s.Done {
			t.Fatalf("the claim is detached while QEMU writes to it: %+v", s)
		}
		c.record(backup.Failed, "aborted")
		if s := c.next(); s.RemoveVolume == "" {
			t.Fatalf("the claim stays: %+v", s)
		}
		c.unmount()
		c.next()
		if s := c.next(); !s.Done || c.VMI.Status.DiskBackup != nil {
			t.Fatalf("something is left: %+v", s)
		}
	})
}

func TestWaitsForADiskThatIsBeingPlugged(t *testing.T) {
	c := newCluster(t)
	volume := v1.Volume{Name: "data"}
	volume.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{Hotpluggable: true}
	volume.PersistentVolumeClaim.ClaimName = "data"
	c.VMI.Spec.Volumes = append(c.VMI.Spec.Volumes, volume)
	c.VMI.Spec.Domain.Devices.Disks = append(c.VMI.Spec.Domain.Devices.Disks, v1.Disk{Name: "data"})
	waits := func(message string) {
		t.Helper()
		if s := c.next(); s.AddVolume != nil || s.Intent != nil {
			t.Fatalf("it does something: %+v", s)
		}
		c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonInitializing,
			"Volume data is being plugged into the vm vm"+message)
	}
	waits("")
	c.VMI.Status.VolumeStatus = append(c.VMI.Status.VolumeStatus, v1.VolumeStatus{
		Name: "data", Phase: v1.HotplugVolumeAttachedToNode, Message: "soon", HotplugVolume: &v1.HotplugVolumeStatus{},
	})
	waits(": soon")
	c.VMI.Status.VolumeStatus[1].Phase = v1.VolumeReady
	if s := c.next(); s.AddVolume == nil {
		t.Errorf("it does not start: %+v", s)
	}
}

// A migration waits until the guest has no utility volume.
func TestMigrationWaitsForTheBackupOnlyIfItsClaimIsThere(t *testing.T) {
	attaching := func(t *testing.T) *cluster {
		c := newCluster(t)
		c.next()
		c.VMI.Status.VolumeStatus = append(c.VMI.Status.VolumeStatus,
			v1.VolumeStatus{Name: "backup-u", Phase: v1.VolumeBound, Message: "no room"})
		c.next()
		c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonInitializing,
			"The claim is being attached: no room")
		return c
	}
	t.Run("it is there", func(t *testing.T) {
		c := attaching(t)
		c.unmount()
		c.mount()
		c.MigrationPending = true
		if s := c.next(); s.Intent == nil {
			t.Errorf("the backup is not requested: %+v", s)
		}
	})
	t.Run("it cannot be attached", func(t *testing.T) {
		c := attaching(t)
		c.MigrationPending = true
		if s := c.next(); s.RemoveVolume == "" {
			t.Fatalf("the migration waits for a claim that cannot be attached: %+v", s)
		}
		c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonInitializing, "migrating")
		c.unmount()
		if s := c.next(); s.AddVolume != nil {
			t.Fatalf("the claim is attached before the migration has ended: %+v", s)
		}
		c.MigrationPending = false
		c.begin()
	})
}

func TestCopiesNoDisksToWhichTheGuestCannotWrite(t *testing.T) {
	c := newCluster(t)
	for name, device := range map[string]v1.DiskDevice{"cd": {CDRom: &v1.CDRomTarget{}},
		"readonly": {Disk: &v1.DiskTarget{ReadOnly: true}}} {
		volume := v1.Volume{Name: name}
		volume.PersistentVolumeClaim = &v1.PersistentVolumeClaimVolumeSource{}
		volume.PersistentVolumeClaim.ClaimName = name
		c.VMI.Spec.Volumes = append(c.VMI.Spec.Volumes, volume)
		c.VMI.Spec.Domain.Devices.Disks = append(c.VMI.Spec.Domain.Devices.Disks, v1.Disk{Name: name, DiskDevice: device})
	}
	c.begin() // which expects a copy of root only
}

func TestWaitsAndProblems(t *testing.T) {
	lun := func(d *v1.Disk) { d.LUN = &v1.LunTarget{} }
	for name, tc := range map[string]struct {
		change  func(*cluster)
		waits   string
		problem string
	}{
		"no tracker": {func(c *cluster) {
			c.Backup.Spec.Source = corev1.TypedLocalObjectReference{APIGroup: ptr.To("backup.kubevirt.io"),
				Kind: "VirtualMachineBackupTracker", Name: "t"}
		}, "BackupTracker t does not exist", ""},
		"no VM":         {func(c *cluster) { c.VMI, c.NoVM = nil, true }, "VM ns/vm doesnt exist", ""},
		"no VMI":        {func(c *cluster) { c.VMI = nil }, "vm vm is not running, cannot do backup", ""},
		"not running":   {func(c *cluster) { c.VMI.Status.Phase = v1.Scheduled }, "vm vm is not running, cannot do backup", ""},
		"no claim":      {func(c *cluster) { c.Claim = nil }, "PVC ns/backups doesnt exist", ""},
		"a migration":   {func(c *cluster) { c.MigrationPending = true }, "vm vm is currently migrating", ""},
		"no hotplug":    {func(c *cluster) { c.VMI.Spec.Domain.Devices.DisableHotplug = true }, "", "disableHotplug"},
		"another one":   {func(c *cluster) { c.VMI.Status.DiskBackup = &v1.DiskBackup{ID: "other"} }, "another VirtualMachineBackup", ""},
		"a long name":   {func(c *cluster) { c.Backup.Name = strings.Repeat("b", maxName+1) }, "", "more than"},
		"a device":      {func(c *cluster) { c.Claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) }, "", "no file system"},
		"its own disk":  {func(c *cluster) { c.Claim.Name = "root-claim" }, "", "is a disk of the VM"},
		"a LUN":         {func(c *cluster) { lun(&c.VMI.Spec.Domain.Devices.Disks[0]) }, "", "is a LUN"},
		"shareable":     {func(c *cluster) { c.VMI.Spec.Domain.Devices.Disks[0].Shareable = ptr.To(true) }, "", "is shareable"},
		"no disk":       {func(c *cluster) { c.VMI.Spec.Domain.Devices.Disks = nil }, "", "is no disk"},
		"nothing to do": {func(c *cluster) { c.VMI.Spec.Volumes = nil }, "", "vm vm has no volumes to backup"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			tc.change(c)
			s := c.next()
			if s.AddVolume != nil || s.Intent != nil {
				t.Errorf("it does something: %+v", s)
			}
			if tc.waits != "" {
				c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonInitializing, tc.waits)
				return
			}
			c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonFailed, tc.problem)
		})
	}
}

// setCondition sets a condition of the VMI.
func (c *cluster) setCondition(
	kind v1.VirtualMachineInstanceConditionType, status corev1.ConditionStatus, message string,
) {
	vmistatus.SetCondition(&c.VMI.Status, v1.VirtualMachineInstanceCondition{Type: kind, Status: status, Message: message},
		metav1.NewTime(c.Now))
}

func TestNodeThatDoesNotRespond(t *testing.T) {
	const silent, failing = "The agent of node blue does not respond", "The guest's state is not known"
	for name, tc := range map[string]struct {
		kind    v1.VirtualMachineInstanceConditionType
		status  corev1.ConditionStatus
		message string
	}{
		"the agent is silent":                 {v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue, silent},
		"the agent cannot reach the guest":    {v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, failing},
		"the agent is not silent any more":    {v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionFalse, ""},
		"the agent can reach the guest":       {v1.VirtualMachineInstanceSynchronized, corev1.ConditionTrue, ""},
		"nothing is said about what is wrong": {v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.setCondition(tc.kind, tc.status, tc.message)
			said := ""
			if tc.message != "" {
				said = ". " + tc.message
			}
			c.next()
			c.says("The claim is being attached" + said)
			c.mount()
			c.next()
			c.next()
			c.says("Backup is in progress. The backup is being started" + said)
			c.record(backup.Running, "")
			c.next()
			c.says("Backup is in progress. The disks are being copied" + said)
			c.MigrationUrgent = true
			c.next()
			c.says("Backup is aborting. " + endedByMigration + said)
			c.MigrationUrgent = false
			c.record(backup.Succeeded, "")
			c.next()
			c.says("Backup is in progress. The claim is being detached" + said)
		})
	}
	t.Run("a backup that was deleted", func(t *testing.T) {
		c := newCluster(t)
		c.begin()
		c.Backup.DeletionTimestamp = ptr.To(metav1.NewTime(start))
		c.next()
		c.says("Backup is aborting. The backup was deleted")
		c.setCondition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue, silent)
		c.next()
		c.says("Backup is aborting. The backup was deleted. " + silent)
	})
}

// says checks the message of the condition Progressing.
func (c *cluster) says(message string) {
	c.t.Helper()
	if got := meta.FindStatusCondition(c.Backup.Status.Conditions,
		string(v1alpha1.ConditionProgressing)).Message; got != message {
		c.t.Errorf("the message is %q, not %q", got, message)
	}
}

func TestClaimThatCannotBeDetached(t *testing.T) {
	const busy, synchronized = "Cannot unmount the volume: it is busy", "The agent does not get on"
	c := newCluster(t)
	c.begin()
	c.record(backup.Succeeded, "")
	volume := &c.VMI.Status.VolumeStatus[1]
	volume.Reason, volume.Message = vmistatus.ReasonVolumeMounted, "It has been mounted"
	c.next()
	c.says("Backup is in progress. The claim is being detached")
	volume.Reason, volume.Message = vmistatus.ReasonHotplugFailed, busy
	c.setCondition(v1.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, synchronized)
	if s := c.next(); s.Pending != "" {
		t.Errorf("it is pending: %s", s.Pending)
	}
	c.says("Backup is in progress. The claim is being detached: " + busy)

	// The guest of a backup that has failed keeps the claim.
	c = newCluster(t)
	c.next()
	c.mount()
	c.VMI.Status.VolumeStatus[1].Reason = vmistatus.ReasonVolumeMounted
	c.Claim.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	c.next()
	if s := c.next(); s.RemoveVolume == "" || s.Pending != "" {
		t.Errorf("the claim stays: %+v", s)
	}
	if s := c.next(); s.Pending != "" || s.Done {
		t.Errorf("it is pending without a problem: %+v", s)
	}
	volume = &c.VMI.Status.VolumeStatus[1]
	volume.Reason, volume.Message = vmistatus.ReasonHotplugFailed, busy
	if s := c.next(); s.Pending != detaching+": "+busy {
		t.Errorf("what is pending is not said: %q", s.Pending)
	}
	volume.Reason, volume.Message = vmistatus.ReasonVolumeMounted, "It has been mounted"
	c.setCondition(v1.VirtualMachineInstanceNodeUnresponsive, corev1.ConditionTrue, "Node blue does not respond")
	if s := c.next(); s.Pending != detaching+". Node blue does not respond" {
		t.Errorf("what is pending is not said: %q", s.Pending)
	}
	c.unmount()
	if s := c.next(); s.Pending != "" || !s.Done {
		t.Errorf("something is left: %+v", s)
	}
}

func TestGuestAgentThatConnectsTooLate(t *testing.T) {
	c := newCluster(t)
	c.next()
	c.mount()
	written := c.next()
	if written.Intent == nil {
		t.Fatalf("the backup is not requested: %+v", written)
	}
	c.expect(v1alpha1.ConditionQuiesced, metav1.ConditionFalse, v1alpha1.ReasonQuiesceSkipped, "no agent")
	// The intent could not be written, so that there is time for a freeze.
	unwritten := newCluster(t)
	unwritten.VMI, unwritten.Backup = c.VMI.DeepCopy(), c.Backup.DeepCopy()
	unwritten.VMI.Status.DiskBackup = nil
	unwritten.connectAgent()
	if s := unwritten.next(); s.Freeze == nil ||
		meta.FindStatusCondition(s.Status.Conditions, string(v1alpha1.ConditionQuiesced)) != nil {
		t.Errorf("no freeze is requested: %+v", s)
	}
	c.connectAgent()
	c.record(backup.Running, "")
	c.next()
	c.record(backup.Succeeded, "")
	c.finish()
	c.expect(v1alpha1.ConditionQuiesced, metav1.ConditionFalse, v1alpha1.ReasonQuiesceSkipped, "no agent")
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, messageFull)
}

func TestUrgentMigrationEndsABackup(t *testing.T) {
	c := newCluster(t)
	c.begin()
	c.MigrationPending, c.MigrationUrgent = true, true
	if s := c.next(); s.Intent == nil || !s.Intent.Canceled {
		t.Fatalf("the migration waits for the backup: %+v", s)
	}
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonAborting, "system-critical")
	if s := c.next(); s.Intent != nil {
		t.Errorf("the backup is canceled twice: %+v", s)
	}
	c.record(backup.Failed, "aborted")
	c.finish()
	c.expect(v1alpha1.ConditionFailed, metav1.ConditionTrue, v1alpha1.ReasonFailed, "system-critical")
	// It was complete before the agent could abort it.
	c = newCluster(t)
	c.begin()
	c.MigrationPending, c.MigrationUrgent = true, true
	c.next()
	c.record(backup.Succeeded, "")
	c.finish()
	c.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, messageFull)
	// A backup that was not requested yet releases its claim, for which the migration waits, and begins after it.
	c = newCluster(t)
	c.next()
	c.mount()
	c.MigrationPending, c.MigrationUrgent = true, true
	if s := c.next(); s.RemoveVolume == "" || s.Intent != nil {
		t.Fatalf("the claim is not detached: %+v", s)
	}
	c.expect(v1alpha1.ConditionProgressing, metav1.ConditionTrue, v1alpha1.ReasonInitializing, "currently migrating")
	c.unmount()
	c.MigrationPending, c.MigrationUrgent = false, false
	c.begin()
}
