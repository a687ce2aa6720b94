// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package plan

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/vireo-project/vireo/api/backup/v1alpha1"
	"github.com/vireo-project/vireo/internal/decide/backup"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
)

// maxSteps is more than it takes a backup to end.
const maxSteps = 25

// TestCleanUp removes a backup by force after each of its steps, before or after the agent has reacted to the last one.
func TestCleanUp(t *testing.T) {
	for name, tc := range map[string]struct {
		create func(*testing.T) *cluster
		stages []backup.Stage
	}{
		"copy": {func(t *testing.T) *cluster { return newTracked(t, "") }, []backup.Stage{backup.None, backup.Running, backup.Succeeded}},
		"pull": {newPulled, []backup.Stage{backup.None, backup.Running}},
	} {
		t.Run(name, func(t *testing.T) {
			var stages []backup.Stage
			for n := range maxSteps {
				for _, reacts := range []bool{false, true} {
					c := tc.create(t)
					c.connectAgent()
					for range n {
						c.react()
						c.next()
					}
					if reacts {
						c.react()
					}
					if len(Holders(c.VMI)) > 0 {
						stages = append(stages, backup.RecordOf(&c.VMI.Status).Stage)
					}
					c.abandon(n)
				}
			}
			for _, stage := range tc.stages {
				if !slices.Contains(stages, stage) {
					t.Errorf("no backup was removed in the stage %q", stage.Name())
				}
			}
		})
	}
}

// abandon removes by force a backup that has done n steps, and expects that nothing is left in the VMI that anybody
// waits for.
func (c *cluster) abandon(n int) {
	c.t.Helper()
	for range maxSteps {
		s := CleanUp(c.VMI, "u", c.Now)
		record := backup.RecordOf(&c.VMI.Status)
		writes := c.VMI.Status.DiskBackup != nil && (record.ID != "u" || !record.Ended())
		if writes && (s.RemoveVolume != "" || s.ClearIntent) {
			c.t.Fatalf("after %d steps: QEMU may still write to the claim: %+v", n, s)
		}
		if !equality.Semantic.DeepEqual(s.Status, v1alpha1.VirtualMachineBackupStatus{}) {
			c.t.Fatalf("after %d steps: a backup that is gone has a status: %+v", n, s.Status)
		}
		before := c.VMI.DeepCopy()
		c.apply(s)
		if s.Done && len(c.VMI.Status.VolumeStatus) == 1 {
			break
		}
		if equality.Semantic.DeepEqual(before, c.VMI) {
			c.react()
		}
	}
	if left := Holders(c.VMI); len(left) > 0 || backup.InProgress(&c.VMI.Status) ||
		freeze.Remaining(&c.VMI.Status, c.Now) > 0 {
		c.t.Errorf("after %d steps: others wait for %v, %+v, %+v", n, left, c.VMI.Status.DiskBackup,
			c.VMI.Status.SnapshotFreeze)
	}
}

func TestCleanUpLeavesWhatIsNotOfABackup(t *testing.T) {
	c := newCluster(t)
	c.begin()
	c.VMI.Status.SnapshotFreeze = (&freeze.Intent{ID: "snapshot", Deadline: c.Now.Add(freezeLimit)}).Status()
	want := c.VMI.DeepCopy()
	for range 3 {
		c.apply(CleanUp(c.VMI, "other", c.Now))
	}
	if !equality.Semantic.DeepEqual(want, c.VMI) {
		t.Errorf("the VMI has changed: %+v", c.VMI)
	}
	// Until the claim is detached, the intent stays, so that no other backup begins.
	c.record(backup.Succeeded, "")
	for range 3 {
		c.apply(CleanUp(c.VMI, "u", c.Now))
	}
	if len(c.VMI.Spec.UtilityVolumes) > 0 || c.VMI.Status.DiskBackup == nil || c.VMI.Status.SnapshotFreeze == nil {
		t.Errorf("not only the claim is being detached: %+v", c.VMI)
	}
}
