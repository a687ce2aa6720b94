// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// react does the next thing that the agent does for what is in the VMI.
func (c *cluster) react() {
	status, wanted := &c.VMI.Status, len(c.VMI.Spec.UtilityVolumes) > 0
	switch mounted := len(status.VolumeStatus) > 1; {
	case wanted && !mounted:
		c.mount()
	case !wanted && mounted:
		c.unmount()
	}
	if intent := freeze.IntentOf(status); intent != nil {
		record := freeze.Record{ID: intent.ID, Deadline: intent.Deadline, Stage: freeze.Frozen}
		if intent.End != freeze.Open {
			record.Stage, record.Kept = freeze.Thawed, intent.End == freeze.Release
		}
		status.SnapshotFreezeRecord = record.Status()
	}
	if intent := backup.IntentOf(status); intent != nil {
		record := backup.RecordOf(status)
		switch {
		case record.ID != intent.ID && intent.Canceled:
			record = backup.Record{ID: intent.ID, Stage: backup.Failed}
		case record.ID != intent.ID:
			record = backup.Record{ID: intent.ID, Stage: backup.Running, StartedAt: c.Now, Checkpoint: intent.Checkpoint,
				Pull: intent.Pull}
		case record.Ended():
		case intent.Canceled && intent.Pull:
			record.Stage, record.Canceled = backup.Succeeded, true
		case intent.Canceled:
			record.Stage = backup.Failed
		case status.SnapshotFreeze == nil && !intent.Pull:
			record.Stage = backup.Succeeded
		}
		status.DiskBackupRecord = record.Status()
	}
}

// TestRepeatedSteps interrupts a backup at each of its steps in each way, and expects it to end as one that was not
// interrupted.
func TestRepeatedSteps(t *testing.T) {
	// Each applies a step that is interrupted. The status before is that without the step.
	interruptions := map[string]func(c *cluster, s Step, before *v1alpha1.VirtualMachineBackupStatus){
		"nothing is written":         func(*cluster, Step, *v1alpha1.VirtualMachineBackupStatus) {},
		"only the status is written": func(c *cluster, s Step, _ *v1alpha1.VirtualMachineBackupStatus) { c.Backup.Status = &s.Status },
		"the cache does not have the status yet": func(c *cluster, s Step, before *v1alpha1.VirtualMachineBackupStatus) {
			c.Backup.Status = &s.Status
			c.apply(s)
			stale := c.Observed
			stale.Backup = c.Backup.DeepCopy()
			stale.Backup.Status = before
			// A status that has changed is not written over one that was not read, and nothing follows.
			if next := Next(stale); reflect.DeepEqual(next.Status, ptr.Deref(before, v1alpha1.VirtualMachineBackupStatus{})) {
				c.apply(next)
			}
		},
	}
	// run returns the backup, and how many steps it took.
	run := func(t *testing.T, interrupted int, how string) (*cluster, int) {
		c := newTracked(t, "")
		c.connectAgent()
		for n := range 50 {
			c.react()
			before := c.Backup.Status
			s := Next(c.Observed)
			if n == interrupted {
				interruptions[how](c, s, before)
				continue
			}
			c.Backup.Status = &s.Status
			c.apply(s)
			if s.Done {
				return c, n + 1
			}
		}
		t.Fatalf("the backup does not end: %+v", c.Backup.Status)
		return nil, 0
	}
	want, steps := run(t, -1, "")
	want.expect(v1alpha1.ConditionComplete, metav1.ConditionTrue, v1alpha1.ReasonCompleted, messageFull)
	want.expect(v1alpha1.ConditionQuiesced, metav1.ConditionTrue, v1alpha1.ReasonQuiesceSucceeded, "")
	for how := range interruptions {
		for n := range steps {
			got, _ := run(t, n, how)
			if diff := cmp.Diff(want.Backup.Status, got.Backup.Status); diff != "" {
				t.Errorf("%s at step %d: status (-want +got):\n%s", how, n, diff)
			}
			if diff := cmp.Diff(want.Tracker.Status, got.Tracker.Status); diff != "" {
				t.Errorf("%s at step %d: tracker (-want +got):\n%s", how, n, diff)
			}
			if left := UIDs(got.VMI); len(left) > 0 {
				t.Errorf("%s at step %d: something is left: %v", how, n, left)
			}
		}
	}
}
