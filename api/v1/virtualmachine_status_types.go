// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineStatus is the observed state of a VM. Set by virt-controller.
type VirtualMachineStatus struct {
	// snapshotInProgress names the snapshot that is being taken; the spec is locked meanwhile.
	SnapshotInProgress *string `json:"snapshotInProgress,omitempty"`
	// restoreInProgress names the restore that is running; the VM does not start meanwhile.
	RestoreInProgress *string `json:"restoreInProgress,omitempty"`
	// created is true while the VM's VMI exists.
	Created bool `json:"created,omitempty"`
	// ready is true while the VMI is ready.
	Ready bool `json:"ready,omitempty"`
	// printableStatus is the state in one word, for people. Defaults to Stopped.
	// +kubebuilder:default=Stopped
	PrintableStatus VirtualMachinePrintableStatus `json:"printableStatus,omitempty"`
	// conditions are the conditions of the VM.
	Conditions []VirtualMachineCondition `json:"conditions,omitempty"`
	// stateChangeRequests are starts and stops that were requested and are not done yet, in their order.
	StateChangeRequests []VirtualMachineStateChangeRequest `json:"stateChangeRequests,omitempty"`
	// volumeRequests are volumes to hotplug or unplug that were requested and are not done yet.
	// +listType=atomic
	VolumeRequests []VirtualMachineVolumeRequest `json:"volumeRequests,omitempty"`
	// volumeSnapshotStatuses report for each volume whether a snapshot can include it.
	VolumeSnapshotStatuses []VolumeSnapshotStatus `json:"volumeSnapshotStatuses,omitempty"`
	// startFailure counts starts that failed in a row, which are tried again later and later.
	// +nullable
	// +optional
	StartFailure *VirtualMachineStartFailure `json:"startFailure,omitempty"`
	// memoryDumpRequest is the memory dump that was requested.
	// +nullable
	// +optional
	MemoryDumpRequest *VirtualMachineMemoryDumpRequest `json:"memoryDumpRequest,omitempty"`
	// observedGeneration is the generation of the spec that the running VMI was made from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// desiredGeneration is the generation of the spec that the controller saw last.
	// +optional
	DesiredGeneration int64 `json:"desiredGeneration,omitempty"`
	// runStrategy is the strategy that the controller acted on last.
	RunStrategy VirtualMachineRunStrategy `json:"runStrategy,omitempty"`
	// volumeUpdateState is the state of an update of volumes.
	VolumeUpdateState *VolumeUpdateState `json:"volumeUpdateState,omitempty"`
	// changedBlockTracking reports whether changed blocks are tracked, for incremental backup.
	// +nullable
	// +optional
	ChangedBlockTracking *ChangedBlockTrackingStatus `json:"changedBlockTracking,omitempty"`
	// instancetypeRef names the instance type in use and its revision.
	// +nullable
	// +optional
	InstancetypeRef *InstancetypeStatusRef `json:"instancetypeRef,omitempty"`
	// preferenceRef names the preference in use and its revision.
	// +nullable
	// +optional
	PreferenceRef *InstancetypeStatusRef `json:"preferenceRef,omitempty"`
}

// VirtualMachinePrintableStatus is the state of a VM in one word.
type VirtualMachinePrintableStatus string

// Values of VirtualMachinePrintableStatus.
const (
	// VirtualMachineStatusStopped: it does not run and is not meant to.
	VirtualMachineStatusStopped VirtualMachinePrintableStatus = "Stopped"
	// VirtualMachineStatusProvisioning: its disks are being created.
	VirtualMachineStatusProvisioning VirtualMachinePrintableStatus = "Provisioning"
	// VirtualMachineStatusStarting: it is being prepared.
	VirtualMachineStatusStarting VirtualMachinePrintableStatus = "Starting"
	// VirtualMachineStatusRunning: it runs.
	VirtualMachineStatusRunning VirtualMachinePrintableStatus = "Running"
	// VirtualMachineStatusPaused: its CPUs are stopped.
	VirtualMachineStatusPaused VirtualMachinePrintableStatus = "Paused"
	// VirtualMachineStatusStopping: it is shutting down.
	VirtualMachineStatusStopping VirtualMachinePrintableStatus = "Stopping"
	// VirtualMachineStatusTerminating: it is being deleted.
	VirtualMachineStatusTerminating VirtualMachinePrintableStatus = "Terminating"
	// VirtualMachineStatusCrashLoopBackOff: it failed several times and waits before the next start.
	VirtualMachineStatusCrashLoopBackOff VirtualMachinePrintableStatus = "CrashLoopBackOff"
	// VirtualMachineStatusMigrating: it migrates to another node.
	VirtualMachineStatusMigrating VirtualMachinePrintableStatus = "Migrating"
	// VirtualMachineStatusUnknown: its node does not respond.
	VirtualMachineStatusUnknown VirtualMachinePrintableStatus = "Unknown"
	// VirtualMachineStatusUnschedulable: no node fits it.
	VirtualMachineStatusUnschedulable VirtualMachinePrintableStatus = "ErrorUnschedulable"
	// VirtualMachineStatusErrImagePull: an image could not be pulled.
	VirtualMachineStatusErrImagePull VirtualMachinePrintableStatus = "ErrImagePull"
	// VirtualMachineStatusImagePullBackOff: an image could not be pulled several times, the next try comes later.
	VirtualMachineStatusImagePullBackOff VirtualMachinePrintableStatus = "ImagePullBackOff"
	// VirtualMachineStatusPvcNotFound: a claim that it names does not exist.
	VirtualMachineStatusPvcNotFound VirtualMachinePrintableStatus = "ErrorPvcNotFound"
	// VirtualMachineStatusDataVolumeError: a DataVolume failed.
	VirtualMachineStatusDataVolumeError VirtualMachinePrintableStatus = "DataVolumeError"
	// VirtualMachineStatusWaitingForVolumeBinding: a claim is not bound yet.
	VirtualMachineStatusWaitingForVolumeBinding VirtualMachinePrintableStatus = "WaitingForVolumeBinding"
	// VirtualMachineStatusWaitingForReceiver: it waits to receive a migration.
	VirtualMachineStatusWaitingForReceiver VirtualMachinePrintableStatus = "WaitingForReceiver"
)

// VirtualMachineStartFailure counts starts that failed in a row.
type VirtualMachineStartFailure struct {
	// consecutiveFailCount is their number.
	ConsecutiveFailCount int `json:"consecutiveFailCount,omitempty"`
	// lastFailedVMIUID is the UID of the VMI that failed last.
	LastFailedVMIUID types.UID `json:"lastFailedVMIUID,omitempty"`
	// retryAfterTimestamp is the earliest time of the next start.
	RetryAfterTimestamp *metav1.Time `json:"retryAfterTimestamp,omitempty"`
}

// StateChangeRequestAction is the request to a VM.
type StateChangeRequestAction string

// Values of StateChangeRequestAction.
const (
	// StartRequest requests a start.
	StartRequest StateChangeRequestAction = "Start"
	// StopRequest requests a stop.
	StopRequest StateChangeRequestAction = "Stop"
)

// VirtualMachineStateChangeRequest is a start or a stop that was requested.
type VirtualMachineStateChangeRequest struct {
	// action is Start or Stop.
	Action StateChangeRequestAction `json:"action"`
	// data contains options, such as to start paused.
	Data map[string]string `json:"data,omitempty"`
	// uid is the UID of the VMI that the request is about.
	UID *types.UID `json:"uid,omitempty"`
}

// VirtualMachineVolumeRequest is a volume to hotplug or unplug.
type VirtualMachineVolumeRequest struct {
	// addVolumeOptions is the volume to hotplug.
	AddVolumeOptions *AddVolumeOptions `json:"addVolumeOptions,omitempty"`
	// removeVolumeOptions is the volume to unplug.
	RemoveVolumeOptions *RemoveVolumeOptions `json:"removeVolumeOptions,omitempty"`
}

// AddVolumeOptions is a volume to hotplug.
type AddVolumeOptions struct {
	// name is its name.
	Name string `json:"name"`
	// disk is the device as which the guest gets it.
	Disk *Disk `json:"disk"`
	// volumeSource is the claim or the DataVolume.
	VolumeSource *HotplugVolumeSource `json:"volumeSource"`
	// dryRun with the value All only checks.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// RemoveVolumeOptions is a volume to unplug.
type RemoveVolumeOptions struct {
	// name is its name.
	Name string `json:"name"`
	// dryRun with the value All only checks.
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

// HotplugVolumeSource is a source that can be plugged into a running guest. One member is set.
type HotplugVolumeSource struct {
	// persistentVolumeClaim is a claim of the namespace.
	// +optional
	PersistentVolumeClaim *PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
	// dataVolume is a DataVolume of the namespace.
	// +optional
	DataVolume *DataVolumeSource `json:"dataVolume,omitempty"`
}

// VolumeSnapshotStatus reports whether a snapshot can include a volume.
type VolumeSnapshotStatus struct {
	// name is its name.
	Name string `json:"name"`
	// enabled is true if it can.
	Enabled bool `json:"enabled"`
	// reason is the reason in one word, for programs.
	Reason string `json:"reason,omitempty"`
}

// VolumeUpdateState is the state of an update of volumes.
type VolumeUpdateState struct {
	// volumeMigrationState is the migration of volumes that is running.
	VolumeMigrationState *VolumeMigrationState `json:"volumeMigrationState,omitempty"`
}

// VolumeMigrationState is a migration of volumes.
type VolumeMigrationState struct {
	// migratedVolumes are the volumes that move.
	// +listType=atomic
	// +optional
	MigratedVolumes []StorageMigratedVolumeInfo `json:"migratedVolumes,omitempty"`
}

// VirtualMachineMemoryDumpRequest is a memory dump that was requested.
type VirtualMachineMemoryDumpRequest struct {
	// claimName is the claim that takes the dump.
	ClaimName string `json:"claimName"`
	// phase is its state.
	Phase MemoryDumpPhase `json:"phase"`
	// remove requests to detach the claim.
	// +optional
	Remove bool `json:"remove,omitempty"`
	// startTimestamp is when the dump started.
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// endTimestamp is when the dump ended.
	// +optional
	EndTimestamp *metav1.Time `json:"endTimestamp,omitempty"`
	// fileName is the dump's file on the claim.
	// +optional
	FileName *string `json:"fileName,omitempty"`
	// message is the explanation for people.
	// +optional
	Message string `json:"message,omitempty"`
}

// MemoryDumpPhase is the state of a memory dump.
type MemoryDumpPhase string

// Values of MemoryDumpPhase.
const (
	// MemoryDumpAssociating: the claim is being attached.
	MemoryDumpAssociating MemoryDumpPhase = "Associating"
	// MemoryDumpInProgress: memory is being written.
	MemoryDumpInProgress MemoryDumpPhase = "InProgress"
	// MemoryDumpUnmounting: the claim is being detached.
	MemoryDumpUnmounting MemoryDumpPhase = "Unmounting"
	// MemoryDumpCompleted: the dump is there.
	MemoryDumpCompleted MemoryDumpPhase = "Completed"
	// MemoryDumpDissociating: the VM is letting go of the claim.
	MemoryDumpDissociating MemoryDumpPhase = "Dissociating"
	// MemoryDumpFailed: there is no dump, the message explains why.
	MemoryDumpFailed MemoryDumpPhase = "Failed"
)

// VirtualMachineCondition is a condition of a VM.
type VirtualMachineCondition struct {
	// type is the condition's type.
	Type VirtualMachineConditionType `json:"type"`
	// status is True, False or Unknown.
	Status corev1.ConditionStatus `json:"status"`
	// lastProbeTime is when the condition was last checked.
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// lastTransitionTime is when status last changed.
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// reason is the reason in one word, for programs.
	Reason string `json:"reason,omitempty"`
	// message is the explanation for people.
	Message string `json:"message,omitempty"`
}

// VirtualMachineConditionType is a type of condition of a VM.
type VirtualMachineConditionType string

// Values of VirtualMachineConditionType.
const (
	// VirtualMachineFailure: the VMI could not be created or deleted.
	VirtualMachineFailure VirtualMachineConditionType = "Failure"
	// VirtualMachineReady: the VMI is ready; copied from it.
	VirtualMachineReady VirtualMachineConditionType = "Ready"
	// VirtualMachinePaused: the guest is paused; copied from the VMI.
	VirtualMachinePaused VirtualMachineConditionType = "Paused"
	// VirtualMachineRestartRequired: the spec has changes that need a restart.
	VirtualMachineRestartRequired VirtualMachineConditionType = "RestartRequired"
	// VirtualMachineManualRecoveryRequired: a volume migration was aborted, and a user has to correct the spec.
	VirtualMachineManualRecoveryRequired VirtualMachineConditionType = "ManualRecoveryRequired"
)
