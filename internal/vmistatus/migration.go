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
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
)

// ErrNotMigrating is wrapped by the error of TransferOwnership and TakeOwnership if there is no migration, or it or the
// VMI has ended.
var ErrNotMigrating = errors.New("no migration transfers ownership of the guest")

// migrationOwners is the table of writers by the JSON name of the fields of status.migrationState. virt-controller
// writes all others, once, with a new migration.
var migrationOwners = map[string]Writer{
	"abortRequested": Controller,

	"targetNodeAddress":              MigrationTarget,
	"targetDirectMigrationNodePorts": MigrationTarget,
	"targetNodeDomainDetected":       MigrationTarget,
	"targetNodeDomainReadyTimestamp": MigrationTarget,

	// Written by the owner of the guest: the target when it runs there, or the source if the migration fails.
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

// migrationOwner returns the current writer of a field of a migration's state, or false if it is written with a new
// migration only.
func migrationOwner(name string, status *v1.VirtualMachineInstanceStatus) (Writer, bool) {
	owner, ok := migrationOwners[name]
	if owner != guestsAgent {
		return owner, ok
	}
	if ownedByTarget(status) {
		return MigrationTarget, true
	}
	return MigrationSource, true
}

// ownedByTarget reports whether the target of the VMI's migration owns the guest.
func ownedByTarget(status *v1.VirtualMachineInstanceStatus) bool {
	m := status.MigrationState
	return m != nil && m.TargetNode != "" && status.NodeName == m.TargetNode
}

// immutable are the fields on which the decisions of internal/decide/migration/protocol depend. Once set they never
// change.
var immutable = map[string]bool{
	"abortRequested": true, "startTimestamp": true, "completed": true, "failed": true,
}

// HasEnded reports whether a migration has succeeded or failed, so that the state of another one may replace its state.
func HasEnded(m *v1.VirtualMachineInstanceMigrationState) bool { return m.Completed || m.Failed }

// Migrating reports whether a VMI has a migration that has not ended.
func Migrating(status *v1.VirtualMachineInstanceStatus) bool {
	return status.MigrationState != nil && !HasEnded(status.MigrationState)
}

// checkMigration returns the fields in which two states of a migration differ, or an error that names the first one
// that the writer must not change.
func checkMigration(
	w Writer, status *v1.VirtualMachineInstanceStatus, after *v1.VirtualMachineInstanceMigrationState,
) ([]string, error) {
	before := status.MigrationState
	if equality.Semantic.DeepEqual(before, after) {
		return nil, nil
	}
	const field = "status." + migrationField
	if before == nil || after == nil || before.MigrationUID != after.MigrationUID {
		switch {
		case w != Controller:
			return nil, fmt.Errorf("%s of another migration belongs to %s, %s must not change it: %w", field, Controller, w,
				ErrNotOwner)
		case before != nil && !HasEnded(before):
			return nil, fmt.Errorf("%s is that of migration %s, which has not ended: %w", field, before.MigrationUID,
				ErrNotOwner)
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
		case immutable[name] && !from.Field(i).IsZero():
			return nil, fmt.Errorf("%s.%s was set and stays as it is: %w", field, name, ErrNotOwner)
		}
		changed = append(changed, migrationField+"."+name)
	}
	return changed, nil
}

// MigrationRecord returns what a VMI's status contains about its migration, or false if it has none.
func MigrationRecord(status *v1.VirtualMachineInstanceStatus) (protocol.Record, bool) {
	m := status.MigrationState
	if m == nil || m.TargetNode == "" {
		return protocol.Record{}, false
	}
	record := protocol.Record{
		Started: m.StartTimestamp != nil, Failed: m.Failed, Abort: m.AbortRequested, PostCopy: m.Mode == v1.MigrationPostCopy,
		Final: StageOf(status.Phase) == Ended,
	}
	if ownedByTarget(status) {
		record.Owner = protocol.Target
	}
	return record, true
}

// TransferOwnership makes the target of the VMI's migration the owner of its guest. Nothing else changes the node of a
// VMI that was assigned. It carries out protocol.TransferOwnership, which has to be decided for the very VMI that is
// given. The migration is completed once the guest runs on the target: by TakeOwnership, or by the target's agent
// afterwards.
//
// The same write moves volumes, and the state of TPM and EFI, to the target's claims, so that no reader sees the new
// owner with the claims of the old one.
//
// It is a compare-and-swap on the resource version of the VMI: a conflict is returned unchanged (apierrors.IsConflict),
// and the caller has to read and decide again. After success the VMI has the status of the response. If the target is
// the owner already it does nothing. It fails with ErrNotMigrating if the migration has failed, or there is none, or
// the VMI has ended.
func TransferOwnership(ctx context.Context, c client.Client, vmi *v1.VirtualMachineInstance) error {
	return changeOwner(ctx, c, vmi, func(*v1.VirtualMachineInstanceMigrationState) {})
}

// TakeOwnership does what TransferOwnership does for a guest that runs on the target, and completes the migration in
// the same write, so that no reader sees a completed migration whose guest is not on the target. The target's agent
// calls it.
func TakeOwnership(ctx context.Context, c client.Client, vmi *v1.VirtualMachineInstance, now metav1.Time) error {
	return changeOwner(ctx, c, vmi, func(m *v1.VirtualMachineInstanceMigrationState) { Complete(m, now) })
}

// Complete records that the guest runs on the target, which completes its migration. What is recorded already stays.
func Complete(m *v1.VirtualMachineInstanceMigrationState, now metav1.Time) {
	m.TargetNodeDomainDetected = true
	if m.TargetNodeDomainReadyTimestamp == nil {
		m.TargetNodeDomainReadyTimestamp = &now
	}
	if !m.Completed {
		m.Completed, m.EndTimestamp = true, &now
	}
}

// changeOwner writes the target as the owner of the guest, and the change of the migration's state with it.
func changeOwner(
	ctx context.Context, c client.Client, vmi *v1.VirtualMachineInstance,
	change func(*v1.VirtualMachineInstanceMigrationState),
) error {
	key := client.ObjectKeyFromObject(vmi)
	record, ok := MigrationRecord(&vmi.Status)
	switch {
	case ok && record.Owner == protocol.Target:
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
		return fmt.Errorf("transfer ownership of VirtualMachineInstance %s to node %s: %w", key, m.TargetNode, err)
	}
	vmi.ResourceVersion, vmi.Status = after.ResourceVersion, after.Status
	return nil
}
