// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
)

var moment = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

// migrating sets the state of a migration that the agents may start.
func migrating(
	uid types.UID, changes ...func(*v1.VirtualMachineInstanceMigrationState),
) func(*v1.VirtualMachineInstanceStatus) {
	return func(s *v1.VirtualMachineInstanceStatus) {
		s.NodeName = "old"
		s.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: uid, SourceNode: "old", TargetNode: "new"}
		for _, change := range changes {
			change(s.MigrationState)
		}
	}
}

func started(m *v1.VirtualMachineInstanceMigrationState)  { m.StartTimestamp = &moment }
func failed(m *v1.VirtualMachineInstanceMigrationState)   { m.Failed, m.Completed = true, true }
func complete(m *v1.VirtualMachineInstanceMigrationState) { Complete(m, moment) }
func owned(s *v1.VirtualMachineInstanceStatus)            { s.NodeName = "new" }
func aborted(m *v1.VirtualMachineInstanceMigrationState)  { m.AbortRequested = true }
func prepared(m *v1.VirtualMachineInstanceMigrationState) { m.TargetNodeAddress = "10.0.0.2" }

func TestMigrationOwnersAreFields(t *testing.T) {
	state := reflect.TypeFor[v1.VirtualMachineInstanceMigrationState]()
	names := map[string]bool{}
	for i := range state.NumField() {
		names[jsonName(state.Field(i))] = true
	}
	for name := range migrationOwners {
		if !names[name] {
			t.Errorf("migrationOwners has %q, which is not a field of the state", name)
		}
	}
	for name := range immutable {
		if migrationOwners[name] == "" {
			t.Errorf("%q is immutable and has no writer", name)
		}
	}
}

func TestCheckMigration(t *testing.T) {
	for _, tc := range []struct {
		name          string
		writer        Writer
		before, after *v1.VirtualMachineInstanceStatus
		changed       []string
		refused       string
	}{
		{"a first migration", Controller, status(v1.Running, func(s *v1.VirtualMachineInstanceStatus) { s.NodeName = "old" }),
			status(v1.Running, migrating("a")), []string{"migrationState"}, ""},
		{"an abort is requested", Controller, status(v1.Running, migrating("a")), status(v1.Running, migrating("a", aborted)),
			[]string{"migrationState.abortRequested"}, ""},
		{"another one after a failure", Controller, status(v1.Running, migrating("a", failed)), status(v1.Running, migrating("b")),
			[]string{"migrationState"}, ""},
		{"another one before the end of the first", Controller, status(v1.Running, migrating("a")), status(v1.Running, migrating("b")), nil,
			"migration a"},
		{"an agent starts another one", MigrationSource, status(v1.Running, migrating("a", failed)), status(v1.Running, migrating("b")), nil,
			"belongs to " + string(Controller)},
		{"the controller changes the target", Controller, status(v1.Running, migrating("a")),
			status(v1.Running, migrating("a", func(m *v1.VirtualMachineInstanceMigrationState) { m.TargetNode = "third" })), nil,
			"migrationState.targetNode"},
		{"the source starts", MigrationSource, status(v1.Running, migrating("a")), status(v1.Running, migrating("a", started)),
			[]string{"migrationState.startTimestamp"}, ""},
		{"the source starts again", MigrationSource, status(v1.Running, migrating("a", started)), status(v1.Running, migrating("a")), nil,
			"migrationState.startTimestamp"},
		{"the source reverts a failure", MigrationSource, status(v1.Running, migrating("a", failed)), status(v1.Running, migrating("a")), nil,
			"migrationState."},
		{"the target is ready", MigrationTarget, status(v1.Running, migrating("a")), status(v1.Running, migrating("a", prepared)),
			[]string{"migrationState.targetNodeAddress"}, ""},
		{"the target fails", MigrationTarget, status(v1.Running, migrating("a")), status(v1.Running, migrating("a", failed)), nil,
			"migrationState.completed belongs to " + string(MigrationSource)},
		{"the target completes what it owns", MigrationTarget, status(v1.Running, migrating("a", started), owned),
			status(v1.Running, migrating("a", started, complete), owned),
			[]string{"migrationState.endTimestamp", "migrationState.targetNodeDomainReadyTimestamp",
				"migrationState.targetNodeDomainDetected", "migrationState.completed"}, ""},
		{"the source completes a migration whose target owns the guest", MigrationSource, status(v1.Running, migrating("a", started), owned),
			status(v1.Running, migrating("a", started, failed), owned), nil,
			"migrationState.completed belongs to " + string(MigrationTarget)},
		{"the target writes what the source's agent owns", MigrationTarget, status(v1.Running, migrating("a")),
			status(v1.Running, migrating("a"), withCondition(v1.VirtualMachineInstanceReady)), nil, "status.conditions[Ready]"},
		{"the target makes itself the owner", MigrationTarget, status(v1.Running, migrating("a")),
			status(v1.Running, migrating("a"), func(s *v1.VirtualMachineInstanceStatus) { s.NodeName = "new" }), nil,
			"status.nodeName"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed, err := Check(tc.writer, tc.before, tc.after)
			if tc.refused != "" {
				if !errors.Is(err, ErrNotOwner) || !strings.Contains(err.Error(), tc.refused) {
					t.Fatalf("got %v, want a refusal with %q", err, tc.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.changed, changed); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestMigrationRecord(t *testing.T) {
	if _, ok := MigrationRecord(status(v1.Running)); ok {
		t.Error("a record without a migration")
	}
	record, ok := MigrationRecord(status(v1.Running, migrating("a", started, aborted, failed)))
	if want := (protocol.Record{Started: true, Abort: true, Failed: true}); !ok || record != want {
		t.Errorf("got %+v", record)
	}
	moved := status(v1.Succeeded, migrating("a"))
	moved.NodeName = "new"
	record, _ = MigrationRecord(moved)
	if want := (protocol.Record{Owner: protocol.Target, Final: true}); record != want {
		t.Errorf("got %+v", record)
	}
}

func TestTransferOwnership(t *testing.T) {
	ctx := context.Background()
	c, patches := server()
	vmi := func(version string, s *v1.VirtualMachineInstanceStatus) *v1.VirtualMachineInstance {
		return &v1.VirtualMachineInstance{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", ResourceVersion: version}, Status: *s,
		}
	}
	for name, s := range map[string]*v1.VirtualMachineInstanceStatus{
		"no migration": status(v1.Running), "failed": status(v1.Running, migrating("a", failed)), "final": status(v1.Failed, migrating("a")),
		"neither's": status(v1.Running, migrating("a"), func(s *v1.VirtualMachineInstanceStatus) { s.NodeName = "third" }),
	} {
		if err := TransferOwnership(ctx, c, vmi("1", s)); !errors.Is(err, ErrNotMigrating) || len(*patches) != 0 {
			t.Errorf("%s: got %v after %d requests", name, err, len(*patches))
		}
	}

	evacuated := status(v1.Running, migrating("a", started),
		func(s *v1.VirtualMachineInstanceStatus) { s.EvacuationNodeName = "old" })
	first, second := vmi("1", evacuated), vmi("1", evacuated)
	if err := TransferOwnership(ctx, c, first); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{{
		"metadata": map[string]any{"resourceVersion": "1"},
		"status": map[string]any{
			"nodeName": "new", "evacuationNodeName": nil,
		},
	}}
	if diff := cmp.Diff(want, *patches); diff != "" {
		t.Error(diff)
	}
	if first.ResourceVersion != "2" || first.Status.NodeName != "new" {
		t.Errorf("the VMI is not that of the response: version %s on %s", first.ResourceVersion, first.Status.NodeName)
	}
	if err := TransferOwnership(ctx, c, first); err != nil || len(*patches) != 1 {
		t.Errorf("ownership was transferred twice: %v", err)
	}
	if err := TransferOwnership(ctx, c, second); !apierrors.IsConflict(err) || second.Status.NodeName != "old" {
		t.Errorf("the second of two: got %v", err)
	}
}

func TestTakeOwnershipIsOneWrite(t *testing.T) {
	c, patches := server()
	vmi := &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", ResourceVersion: "1"},
		Status:     *status(v1.Running, migrating("a", started)),
	}
	if err := TakeOwnership(t.Context(), c, vmi, moment); err != nil {
		t.Fatal(err)
	}
	const at = "2026-01-01T00:00:00Z"
	want := []map[string]any{{
		"metadata": map[string]any{"resourceVersion": "1"},
		"status": map[string]any{
			"nodeName": "new",
			"migrationState": map[string]any{
				"completed": true, "endTimestamp": at, "targetNodeDomainDetected": true, "targetNodeDomainReadyTimestamp": at,
			},
		},
	}}
	if diff := cmp.Diff(want, *patches); diff != "" {
		t.Error(diff)
	}
	Complete(vmi.Status.MigrationState, metav1.NewTime(moment.Add(time.Hour)))
	if m := vmi.Status.MigrationState; !m.EndTimestamp.Equal(&moment) || !m.TargetNodeDomainReadyTimestamp.Equal(&moment) {
		t.Errorf("recorded twice: %+v", m)
	}
}
