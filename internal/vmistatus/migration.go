// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmistatus

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/migration"
)

// ErrNotMigrating is wrapped by the error of a hand-over that the VMI's status does not allow: there is no migration, or it has
// ended otherwise.
var ErrNotMigrating = errors.New("the guest does not change hands")

// migrationOwners is the table of writers by the JSON name of the fields of status.migrationState. What is not in it is
// virt-controller's, and written with the whole of a new migration.
var migrationOwners = map[string]Writer{
	"abortRequested": Controller,

	"targetNodeAddress":              MigrationTarget,
	"targetDirectMigrationNodePorts": MigrationTarget,
	"targetNodeDomainDetected":       MigrationTarget,
	"targetNodeDomainReadyTimestamp": MigrationTarget,

	// Whose node has the guest in the end: the target's when it runs there, or the source's when it stays.
	"completed":    guestsAgent,
	"endTimestamp": guestsAgent,

	"startTimestamp": MigrationSource,
	"failed":         MigrationSource,
	"failureReason":  MigrationSource,
	"abortStatus":    MigrationSource,
	"mode":           MigrationSource,
}

// guestsAgent stands for the agent of the node that owns the guest.
const guestsAgent Writer = "virt-handler of the guest's node"

// migrationOwner is who writes a field of a migration's state now, or false if that is written with the whole only.
func migrationOwner(name string, status *v1.VirtualMachineInstanceStatus) (Writer, bool) {
	owner, ok := migrationOwners[name]
	if owner != guestsAgent {
		return owner, ok
	}
	if isTargets(status) {
		return MigrationTarget, true
	}
	return MigrationSource, true
}

// isTargets says that the target of the VMI's migration owns the guest.
func isTargets(status *v1.VirtualMachineInstanceStatus) bool {
	m := status.MigrationState
	return m != nil && m.TargetNode != "" && status.NodeName == m.TargetNode
}

// forGood are the fields that the decisions of internal/migration are made on. Once set they stay as they are.
var forGood = map[string]bool{
	"abortRequested": true, "startTimestamp": true, "completed": true, "failed": true,
}

// HasEnded says that a migration has ended, well or not: its state can be replaced by that of another one.
func HasEnded(m *v1.VirtualMachineInstanceMigrationState) bool { return m.Completed || m.Failed }

// checkMigration returns the fields in which two states of a migration differ, or an error that names the first one that the
// writer must not change.
func checkMigration(w Writer, status *v1.VirtualMachineInstanceStatus, after *v1.VirtualMachineInstanceMigrationState) ([]string, error) {
	before := status.MigrationState
	if equality.Semantic.DeepEqual(before, after) {
		return nil, nil
	}
	const field = "status." + migrationField
	if before == nil || after == nil || before.MigrationUID != after.MigrationUID {
		switch {
		case w != Controller:
			return nil, fmt.Errorf("%s of another migration belongs to %s, %s must not change it: %w", field, Controller, w, ErrNotOwner)
		case before != nil && !HasEnded(before):
			return nil, fmt.Errorf("%s is that of migration %s, which has not ended: %w", field, before.MigrationUID, ErrNotOwner)
		}
		return []string{migrationField}, nil
	}
	var changed []string
	from, to := reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem()
	for i := range from.NumField() {
		if equality.Semantic.DeepEqual(from.Field(i).Interface(), to.Field(i).Interface()) {
			continue
		}
		name := jsonName(from.Type().Field(i))
		owner, ok := migrationOwner(name, status)
		switch {
		case !ok:
			return nil, fmt.Errorf("%s.%s is written once, with a new migration: %w", field, name, ErrNotOwner)
		case owner != w:
			return nil, fmt.Errorf("%s.%s belongs to %s, %s must not change it: %w", field, name, owner, w, ErrNotOwner)
		case forGood[name] && !from.Field(i).IsZero():
			return nil, fmt.Errorf("%s.%s was set and stays as it is: %w", field, name, ErrNotOwner)
		}
		changed = append(changed, migrationField+"."+name)
	}
	return changed, nil
}

// MigrationRecord is what a VMI's status says about its migration, or false if it has none.
func MigrationRecord(status *v1.VirtualMachineInstanceStatus) (migration.Record, bool) {
	m := status.MigrationState
	if m == nil || m.TargetNode == "" {
		return migration.Record{}, false
	}
	record := migration.Record{
		Started: m.StartTimestamp != nil, Failed: m.Failed, Abort: m.AbortRequested, PostCopy: m.Mode == v1.MigrationPostCopy,
		Final: StageOf(status.Phase) == Ended,
	}
	if isTargets(status) {
		record.Owner = migration.Target
	}
	return record, true
}

// HandOver records that the target of the VMI's migration owns its guest. It is the only way in which a VMI that was handed to a
// node's agent comes to another one, and carries out migration.Yield: decide on it before, on the very VMI that is given here. That
// the migration is completed is said when the guest runs at the target, by Claim or by the target's agent.
//
// Volumes that moved along, and the claim with the machine's own state, are the guest's from the same write on: nobody sees the new
// owner with the claims of the old one.
//
// It is a compare-and-swap on the resource version of the VMI: a conflict comes back as it is (apierrors.IsConflict), and whoever
// gets it looks and decides anew. The VMI is changed to what the API server answered. It does nothing if the target is the
// owner already, and fails with ErrNotMigrating if the migration has failed, or there is none, or the VMI has ended.
func HandOver(ctx context.Context, c client.Client, vmi *v1.VirtualMachineInstance) error {
	return handOver(ctx, c, vmi, func(*v1.VirtualMachineInstanceMigrationState) {})
}

// Claim does what HandOver does for a guest that runs at the target, and says so in the same write: nobody sees a migration that is
// completed and whose guest is not there. It carries out migration.Claim.
func Claim(ctx context.Context, c client.Client, vmi *v1.VirtualMachineInstance, now metav1.Time) error {
	return handOver(ctx, c, vmi, func(m *v1.VirtualMachineInstanceMigrationState) { Complete(m, now) })
}

// Complete says that the guest runs at the target, and so its migration is over. What is said already stays.
func Complete(m *v1.VirtualMachineInstanceMigrationState, now metav1.Time) {
	m.TargetNodeDomainDetected = true
	if m.TargetNodeDomainReadyTimestamp == nil {
		m.TargetNodeDomainReadyTimestamp = &now
	}
	if !m.Completed {
		m.Completed, m.EndTimestamp = true, &now
	}
}

func handOver(ctx context.Context, c client.Client, vmi *v1.VirtualMachineInstance, change func(*v1.VirtualMachineInstanceMigrationState)) error {
	key := client.ObjectKeyFromObject(vmi)
	record, ok := MigrationRecord(&vmi.Status)
	switch {
	case ok && record.Owner == migration.Target:
		return nil
	case !ok, record.Failed, record.Final, vmi.Status.NodeName != vmi.Status.MigrationState.SourceNode:
		return fmt.Errorf("VirtualMachineInstance %s: %w", key, ErrNotMigrating)
	}
	after := vmi.DeepCopy()
	m := after.Status.MigrationState
	after.Status.NodeName = m.TargetNode
	change(m)
	settleVolumes(&after.Status)
	moveState(&after.Status)
	if after.Status.EvacuationNodeName == m.SourceNode {
		after.Status.EvacuationNodeName = ""
	}
	if err := swap(ctx, c, vmi, after); err != nil {
		return fmt.Errorf("hand VirtualMachineInstance %s over to node %s: %w", key, m.TargetNode, err)
	}
	vmi.ResourceVersion, vmi.Status = after.ResourceVersion, after.Status
	return nil
}
