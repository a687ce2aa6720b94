// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package export contains what all versions of the API group export.kubevirt.io share: its name, and the reasons of
// conditions and events of exports.
package export

// GroupName is the name of the API group.
const GroupName = "export.kubevirt.io"

// Reasons of the conditions of an export, from KubeVirt's pkg/storage/export/export.
const (
	// InitializingReason: it has not been processed yet.
	InitializingReason = "Initializing"
	// UnknownReason: the state cannot be determined.
	UnknownReason = "Unknown"
	// InUseReason: a volume is in use by a Pod, and is exported once it is not.
	InUseReason = "InUse"
	// PodPendingReason: the exporter's Pod does not run yet.
	PodPendingReason = "PodPending"
	// PodReadyReason: the exporter's Pod serves the volumes.
	PodReadyReason = "PodReady"
	// PodCompletedReason: the exporter's Pod has ended.
	PodCompletedReason = "PodCompleted"
	// VMNotFoundReason: there is no such VM.
	VMNotFoundReason = "VMNotFound"
	// VMNoVolumesReason: the VM has no volumes that could be exported.
	VMNoVolumesReason = "VMNoVolumes"
	// VolumesNotPopulatedReason: not all volumes of the VM exist and are filled.
	VolumesNotPopulatedReason = "VolumesNotPopulated"
	// VMSnapshotNotFoundReason: there is no such snapshot.
	VMSnapshotNotFoundReason = "VMSnapshotNotFound"
	// VMSnapshotNoVolumesReason: the snapshot has no volumes.
	VMSnapshotNoVolumesReason = "VMSnapshotNoVolumes"
	// NotAllPVCsCreatedReason: not all claims were made of the snapshot.
	NotAllPVCsCreatedReason = "NotAllPVCsCreated"
	// NotAllPVCsReadyReason: not all claims that were made of the snapshot are bound.
	NotAllPVCsReadyReason = "NotAllPVCsReady"
	// AllPVCsReadyReason: all claims that were made of the snapshot are bound.
	AllPVCsReadyReason = "AllPVCsReady"
	// PVCNotFoundReason: there is no such claim.
	PVCNotFoundReason = "PVCNotFound"
	// PVCPendingReason: the claim is not bound yet.
	PVCPendingReason = "PVCPending"
	// PVCBoundReason: the claim is bound.
	PVCBoundReason = "PVCBound"
	// OCIDigestsPendingReason: the digests of the disks, with which an OCI image begins, are not known yet.
	OCIDigestsPendingReason = "DigestsPending"
	// OCIDigestsComputedReason: the export can be downloaded as an OCI image.
	OCIDigestsComputedReason = "DigestsComputed"
	// AllVolumesReadReason: clients have read all of the backup.
	AllVolumesReadReason = "AllVolumesRead"
	// NotAllVolumesReadReason: they have not, or that is not known.
	NotAllVolumesReadReason = "NotAllVolumesRead"
)

// Reasons of events on an export.
const (
	// ExporterPodCreatedEvent: the exporter's Pod was made.
	ExporterPodCreatedEvent = "ExporterPodCreated"
	// ExporterPodFailedOrCompletedEvent: the exporter's Pod has ended.
	ExporterPodFailedOrCompletedEvent = "ExporterPodFailedOrCompleted"
	// ExportPausedEvent: the export waits, as its volumes are in use.
	ExportPausedEvent = "ExportPaused"
	// SecretCreatedEvent: the Secret with the token or the one with the exporter's certificate was made.
	SecretCreatedEvent = "SecretCreated"
	// ServiceCreatedEvent: the Service in front of the exporter's Pod was made.
	ServiceCreatedEvent = "ServiceCreated"
)
