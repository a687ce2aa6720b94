// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// SyncEvent is the reason of an event about a VMI that its agent writes.
type SyncEvent string

// Values of SyncEvent.
const (
	// Created: the guest was defined.
	Created SyncEvent = "Created"
	// Deleted: the guest is gone.
	Deleted SyncEvent = "Deleted"
	// PresetFailed: a preset could not be merged.
	PresetFailed SyncEvent = "PresetFailed"
	// Override: a preset has another value than the VMI, which takes precedence.
	Override SyncEvent = "Override"
	// Started: the guest runs.
	Started SyncEvent = "Started"
	// ShuttingDown: the guest was requested to shut down.
	ShuttingDown SyncEvent = "ShuttingDown"
	// Stopped: the guest does not run anymore.
	Stopped SyncEvent = "Stopped"
	// PreparingTarget: the target is being prepared.
	PreparingTarget SyncEvent = "PreparingTarget"
	// Migrating: the transfer is running.
	Migrating SyncEvent = "Migrating"
	// Migrated: the guest runs on another node.
	Migrated SyncEvent = "Migrated"
	// SyncFailed: the guest could not be changed to match the spec.
	SyncFailed SyncEvent = "SyncFailed"
	// Resumed: the guest's CPUs run again.
	Resumed SyncEvent = "Resumed"
	// AccessCredentialsSyncFailed: keys or passwords could not be put into the guest.
	AccessCredentialsSyncFailed SyncEvent = "AccessCredentialsSyncFailed"
	// AccessCredentialsSyncSuccess: keys and passwords are in the guest.
	AccessCredentialsSyncSuccess SyncEvent = "AccessCredentialsSyncSuccess"
)

// String is the reason as an event contains it.
func (e SyncEvent) String() string { return string(e) }
