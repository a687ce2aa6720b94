// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package snapshot contains what all versions of the API group snapshot.kubevirt.io share: its name, and the
// finalizers, labels, annotations and event reasons of snapshots and restores. The values are those of KubeVirt's
// pkg/storage/snapshot.
package snapshot

// GroupName is the name of the API group.
const GroupName = "snapshot.kubevirt.io"

// Finalizers. Each keeps an object until virt-controller has cleaned up after it.
const (
	// VirtualMachineSnapshotFinalizer keeps a VirtualMachineSnapshot until its VM is unlocked and its content is deleted,
	// or kept, by the deletion policy.
	VirtualMachineSnapshotFinalizer = "snapshot.kubevirt.io/vmsnapshot-protection"
	// VirtualMachineSnapshotContentFinalizer keeps a VirtualMachineSnapshotContent while its snapshot is being taken.
	VirtualMachineSnapshotContentFinalizer = "snapshot.kubevirt.io/vmsnapshotcontent-protection"
	// SourceFinalizer keeps a VM while a snapshot of it is being taken.
	SourceFinalizer = "snapshot.kubevirt.io/snapshot-source-protection"
	// VirtualMachineRestoreFinalizer keeps a VirtualMachineRestore until its target is released.
	VirtualMachineRestoreFinalizer = "snapshot.kubevirt.io/vmrestore-protection"
)

// Labels and annotations that virt-controller writes.
const (
	// SourceNameLabel is on a VolumeSnapshot and names the VM that the snapshot was taken of. Of a name with more than 63
	// characters, the label has the beginning and a hash, and an annotation of the same key has all of it.
	SourceNameLabel = "snapshot.kubevirt.io/source-vm-name"
	// SourceNamespaceLabel is on a VolumeSnapshot and is that VM's namespace.
	SourceNamespaceLabel = "snapshot.kubevirt.io/source-vm-namespace"
	// GuestAnnotation is on a VirtualMachineSnapshotContent and is how the guest was when the snapshot was taken, from
	// which the indications of the VirtualMachineSnapshot follow. The annotation is Vireo's own.
	GuestAnnotation = "snapshot.kubevirt.io/guest"
	// RestoreNameAnnotation is on a restored PersistentVolumeClaim and names the VirtualMachineRestore.
	RestoreNameAnnotation = "restore.kubevirt.io/name"
	// LastRestoreAnnotation is on a VM and on restored PersistentVolumeClaims, and contains name and UID of the last
	// restore that changed it, as <name>-<uid>, so that a restore is done once.
	LastRestoreAnnotation = "restore.kubevirt.io/lastRestoreUID"
	// RestoreSourceNameLabel is on a restored PersistentVolumeClaim and names the VM whose volume it was; a long name as
	// in SourceNameLabel.
	RestoreSourceNameLabel = "restore.kubevirt.io/source-vm-name"
	// RestoreSourceNamespaceLabel is on a restored PersistentVolumeClaim and is that VM's namespace.
	RestoreSourceNamespaceLabel = "restore.kubevirt.io/source-vm-namespace"
	// RestoreOwnedByVMAnnotation is on a restored PersistentVolumeClaim that is to be owned by a VM that does not exist
	// yet, and names the VirtualMachineRestore.
	RestoreOwnedByVMAnnotation = "restore.kubevirt.io/owned-by-vm"
	// RestoreCleanupStateLabel is on a PersistentVolumeClaim with the TPM's and EFI's state that a restore has replaced,
	// and contains persistent-state-for-<vm>. The claim is deleted at the end of the restore.
	RestoreCleanupStateLabel = "restore.kubevirt.io/cleanup-backend-pvc"
)

// Reasons of events on snapshots, their contents and restores.
const (
	// ContentCreatedEvent: a snapshot has its content.
	ContentCreatedEvent = "SuccessfulVirtualMachineSnapshotContentCreate"
	// VolumeSnapshotCreatedEvent: the snapshot of one volume was requested.
	VolumeSnapshotCreatedEvent = "SuccessfulVolumeSnapshotCreate"
	// VolumeSnapshotMissingEvent: the snapshot of one volume is gone.
	VolumeSnapshotMissingEvent = "VolumeSnapshotMissing"
	// FreezeErrorEvent, on the VMI: its file systems could not be frozen, or not long enough.
	FreezeErrorEvent = "FreezeError"
	// RestoreCompleteEvent: a restore is complete.
	RestoreCompleteEvent = "VirtualMachineRestoreComplete"
	// RestoreErrorEvent: a restore could not go on.
	RestoreErrorEvent = "VirtualMachineRestoreError"
	// RestoreTargetNotReadyEvent: a restore waits for its target to stop.
	RestoreTargetNotReadyEvent = "RestoreTargetNotReady"
	// RestoreFailedEvent: a restore has failed for good.
	RestoreFailedEvent = "Operation failed"
	// RestoreDataVolumeCreateErrorEvent: a DataVolume of the target could not be made.
	RestoreDataVolumeCreateErrorEvent = "RestoreDataVolumeCreateError"
)
