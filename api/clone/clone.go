// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package clone contains what all versions of the API group clone.kubevirt.io share: its name, its kind, and the
// reasons of events on clones.
package clone

// GroupName is the name of the API group.
const GroupName = "clone.kubevirt.io"

// Versions of the group.
const (
	// LatestAlphaVersion is served for older clients.
	LatestAlphaVersion = "v1alpha1"
	// LatestBetaVersion is the stored version.
	LatestBetaVersion = "v1beta1"
	// LatestVersion is the newest version.
	LatestVersion = LatestBetaVersion
)

// Names of the group's kind and resource.
const (
	// Kind is the one kind of the group.
	Kind = "VirtualMachineClone"
	// ListKind is a list of that kind.
	ListKind = "VirtualMachineCloneList"
	// ResourceVMCloneSingular is one VirtualMachineClone.
	ResourceVMCloneSingular = "virtualmachineclone"
	// ResourceVMClonePlural is the resource of VirtualMachineClones.
	ResourceVMClonePlural = ResourceVMCloneSingular + "s"
)

// Reasons of events on a clone, from KubeVirt's pkg/virt-controller/watch/clone.
const (
	// SnapshotCreatedEvent: a snapshot of the source was requested.
	SnapshotCreatedEvent = "SnapshotCreated"
	// SnapshotReadyEvent: the snapshot can be restored.
	SnapshotReadyEvent = "SnapshotReady"
	// SnapshotDeletedEvent: a user deleted the snapshot. The clone has failed.
	SnapshotDeletedEvent = "SnapshotDeleted"
	// RestoreCreatedEvent: a restore to the target was requested.
	RestoreCreatedEvent = "RestoreCreated"
	// RestoreCreationFailedEvent: the restore was refused.
	RestoreCreationFailedEvent = "RestoreCreationFailed"
	// RestoreReadyEvent: the restore is complete.
	RestoreReadyEvent = "RestoreReady"
	// TargetVMCreatedEvent: the target exists.
	TargetVMCreatedEvent = "TargetVMCreated"
	// PVCBoundEvent: the claims of the target are bound; the snapshot and the restore are deleted.
	PVCBoundEvent = "PVCBound"
	// SourceDoesNotExistEvent: the source is not there (yet).
	SourceDoesNotExistEvent = "SourceDoesNotExist"
	// SourceWithBackendStorageInvalidEvent: the source has state of TPM or EFI, and cannot be cloned. The clone has
	// failed.
	SourceWithBackendStorageInvalidEvent = "SourceVMWithBackendStorageInvalid"
	// VMVolumeSnapshotsInvalidEvent: no snapshot can be taken of a volume of the source (yet).
	VMVolumeSnapshotsInvalidEvent = "VMVolumeSnapshotsInvalid"
	// SnapshotContentInvalidEvent: the snapshot has not all that a clone needs. The clone has failed.
	SnapshotContentInvalidEvent = "SnapshotContentInvalid"
)

// Reasons of events that KubeVirt does not have: it waits in these cases. The clone has failed.
const (
	// SnapshotFailedEvent: the snapshot has failed.
	SnapshotFailedEvent = "SnapshotFailed"
	// RestoreFailedEvent: the restore has failed.
	RestoreFailedEvent = "RestoreFailed"
	// RestoreDeletedEvent: a user deleted the restore.
	RestoreDeletedEvent = "RestoreDeleted"
)
