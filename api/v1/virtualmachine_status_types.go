// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type VirtualMachineStatus struct {
	SnapshotInProgress *string `json:"snapshotInProgress,omitempty"`
	RestoreInProgress  *string `json:"restoreInProgress,omitempty"`
	Created            bool    `json:"created,omitempty"`
	Ready              bool    `json:"ready,omitempty"`
	// +kubebuilder:default=Stopped
	PrintableStatus     VirtualMachinePrintableStatus      `json:"printableStatus,omitempty"`
	Conditions          []VirtualMachineCondition          `json:"conditions,omitempty"`
	StateChangeRequests []VirtualMachineStateChangeRequest `json:"stateChangeRequests,omitempty"`
	// +listType=atomic
	VolumeRequests         []VirtualMachineVolumeRequest `json:"volumeRequests,omitempty"`
	VolumeSnapshotStatuses []VolumeSnapshotStatus        `json:"volumeSnapshotStatuses,omitempty"`
	// +nullable
	// +optional
	StartFailure *VirtualMachineStartFailure `json:"startFailure,omitempty"`
	// +nullable
	// +optional
	MemoryDumpRequest *VirtualMachineMemoryDumpRequest `json:"memoryDumpRequest,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	DesiredGeneration int64                     `json:"desiredGeneration,omitempty"`
	RunStrategy       VirtualMachineRunStrategy `json:"runStrategy,omitempty"`
	VolumeUpdateState *VolumeUpdateState        `json:"volumeUpdateState,omitempty"`
	// +nullable
	// +optional
	ChangedBlockTracking *ChangedBlockTrackingStatus `json:"changedBlockTracking,omitempty"`
	// +nullable
	// +optional
	InstancetypeRef *InstancetypeStatusRef `json:"instancetypeRef,omitempty"`
	// +nullable
	// +optional
	PreferenceRef *InstancetypeStatusRef `json:"preferenceRef,omitempty"`
}

type VirtualMachinePrintableStatus string

// Values of VirtualMachinePrintableStatus.
const (
	VirtualMachineStatusStopped                 VirtualMachinePrintableStatus = "Stopped"
	VirtualMachineStatusProvisioning            VirtualMachinePrintableStatus = "Provisioning"
	VirtualMachineStatusStarting                VirtualMachinePrintableStatus = "Starting"
	VirtualMachineStatusRunning                 VirtualMachinePrintableStatus = "Running"
	VirtualMachineStatusPaused                  VirtualMachinePrintableStatus = "Paused"
	VirtualMachineStatusStopping                VirtualMachinePrintableStatus = "Stopping"
	VirtualMachineStatusTerminating             VirtualMachinePrintableStatus = "Terminating"
	VirtualMachineStatusCrashLoopBackOff        VirtualMachinePrintableStatus = "CrashLoopBackOff"
	VirtualMachineStatusMigrating               VirtualMachinePrintableStatus = "Migrating"
	VirtualMachineStatusUnknown                 VirtualMachinePrintableStatus = "Unknown"
	VirtualMachineStatusUnschedulable           VirtualMachinePrintableStatus = "ErrorUnschedulable"
	VirtualMachineStatusErrImagePull            VirtualMachinePrintableStatus = "ErrImagePull"
	VirtualMachineStatusImagePullBackOff        VirtualMachinePrintableStatus = "ImagePullBackOff"
	VirtualMachineStatusPvcNotFound             VirtualMachinePrintableStatus = "ErrorPvcNotFound"
	VirtualMachineStatusDataVolumeError         VirtualMachinePrintableStatus = "DataVolumeError"
	VirtualMachineStatusWaitingForVolumeBinding VirtualMachinePrintableStatus = "WaitingForVolumeBinding"
	VirtualMachineStatusWaitingForReceiver      VirtualMachinePrintableStatus = "WaitingForReceiver"
)

type VirtualMachineStartFailure struct {
	ConsecutiveFailCount int          `json:"consecutiveFailCount,omitempty"`
	LastFailedVMIUID     types.UID    `json:"lastFailedVMIUID,omitempty"`
	RetryAfterTimestamp  *metav1.Time `json:"retryAfterTimestamp,omitempty"`
}

type StateChangeRequestAction string

// Values of StateChangeRequestAction.
const (
	StartRequest StateChangeRequestAction = "Start"
	StopRequest  StateChangeRequestAction = "Stop"
)

type VirtualMachineStateChangeRequest struct {
	Action StateChangeRequestAction `json:"action"`
	Data   map[string]string        `json:"data,omitempty"`
	UID    *types.UID               `json:"uid,omitempty"`
}

type VirtualMachineVolumeRequest struct {
	AddVolumeOptions    *AddVolumeOptions    `json:"addVolumeOptions,omitempty"`
	RemoveVolumeOptions *RemoveVolumeOptions `json:"removeVolumeOptions,omitempty"`
}

type AddVolumeOptions struct {
	Name         string               `json:"name"`
	Disk         *Disk                `json:"disk"`
	VolumeSource *HotplugVolumeSource `json:"volumeSource"`
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

type RemoveVolumeOptions struct {
	Name string `json:"name"`
	// +optional
	// +listType=atomic
	DryRun []string `json:"dryRun,omitempty"`
}

type HotplugVolumeSource struct {
	// +optional
	PersistentVolumeClaim *PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
	// +optional
	DataVolume *DataVolumeSource `json:"dataVolume,omitempty"`
}

type VolumeSnapshotStatus struct {
	Name    string `json:"name"`
	Enabled bool   `json:"enabled"`
	Reason  string `json:"reason,omitempty"`
}

type VolumeUpdateState struct {
	VolumeMigrationState *VolumeMigrationState `json:"volumeMigrationState,omitempty"`
}

type VolumeMigrationState struct {
	// +listType=atomic
	// +optional
	MigratedVolumes []StorageMigratedVolumeInfo `json:"migratedVolumes,omitempty"`
}

type VirtualMachineMemoryDumpRequest struct {
	ClaimName string          `json:"claimName"`
	Phase     MemoryDumpPhase `json:"phase"`
	// +optional
	Remove bool `json:"remove,omitempty"`
	// +optional
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// +optional
	EndTimestamp *metav1.Time `json:"endTimestamp,omitempty"`
	// +optional
	FileName *string `json:"fileName,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
}

type MemoryDumpPhase string

// Values of MemoryDumpPhase.
const (
	MemoryDumpAssociating  MemoryDumpPhase = "Associating"
	MemoryDumpInProgress   MemoryDumpPhase = "InProgress"
	MemoryDumpUnmounting   MemoryDumpPhase = "Unmounting"
	MemoryDumpCompleted    MemoryDumpPhase = "Completed"
	MemoryDumpDissociating MemoryDumpPhase = "Dissociating"
	MemoryDumpFailed       MemoryDumpPhase = "Failed"
)

type VirtualMachineCondition struct {
	Type   VirtualMachineConditionType `json:"type"`
	Status corev1.ConditionStatus      `json:"status"`
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	Reason             string      `json:"reason,omitempty"`
	Message            string      `json:"message,omitempty"`
}

type VirtualMachineConditionType string

// Values of VirtualMachineConditionType.
const (
	VirtualMachineFailure                VirtualMachineConditionType = "Failure"
	VirtualMachineReady                  VirtualMachineConditionType = "Ready"
	VirtualMachinePaused                 VirtualMachineConditionType = "Paused"
	VirtualMachineRestartRequired        VirtualMachineConditionType = "RestartRequired"
	VirtualMachineManualRecoveryRequired VirtualMachineConditionType = "ManualRecoveryRequired"
)
