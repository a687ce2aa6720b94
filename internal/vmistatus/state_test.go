// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
)

func TestStateClaims(t *testing.T) {
	moving := func(change ...func(*v1.VirtualMachineInstanceStatus)) v1.VirtualMachineInstanceStatus {
		s := v1.VirtualMachineInstanceStatus{
			Phase: v1.Running, NodeName: "red",
			MigrationState: &v1.VirtualMachineInstanceMigrationState{
				SourceNode: "red", TargetNode: "blue", SourcePersistentStatePVCName: "old", TargetPersistentStatePVCName: "new",
			},
		}
		for _, c := range change {
			c(&s)
		}
		return s
	}
	type status = v1.VirtualMachineInstanceStatus
	started := func(s *status) { s.MigrationState.StartTimestamp = new(metav1.Now()) }
	owned := func(s *status) { s.NodeName, s.MigrationState.Completed = "blue", true }
	failed := func(s *status) { s.MigrationState.Failed, s.MigrationState.Completed = true, true }
	ended := func(s *status) { s.Phase = v1.Failed }
	lost := func(s *status) { s.Phase, s.Reason = v1.Failed, ReasonLostInMigration }
	shared := func(s *status) { s.MigrationState.TargetPersistentStatePVCName = "old" }
	none := func(s *status) {
		s.MigrationState.SourcePersistentStatePVCName, s.MigrationState.TargetPersistentStatePVCName = "", ""
	}
	for name, tc := range map[string]struct {
		status     status
		keep, drop string
	}{
		"no migration":                  {status{Phase: v1.Running}, "", ""},
		"not started":                   {moving(), "", ""},
		"in transfer":                   {moving(started), "", ""},
		"owned by the target":           {moving(started, owned), "new", "old"},
		"owned by the target and ended": {moving(started, owned, ended), "new", "old"},
		"failed":                        {moving(started, failed), "old", "new"},
		"ended on the source":           {moving(started, ended), "old", "new"},
		"lost in migration":             {moving(started, lost), "new", "old"},
		"one claim for both":            {moving(shared, owned), "", ""},
		"no state":                      {moving(none, owned), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if keep, drop := StateClaims(&tc.status); keep != tc.keep || drop != tc.drop {
				t.Errorf("keep %q and drop %q, want %q and %q", keep, drop, tc.keep, tc.drop)
			}
		})
	}
}
