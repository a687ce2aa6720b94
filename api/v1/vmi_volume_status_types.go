// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type VolumeStatus struct {
	Name                      string                     `json:"name"`
	Target                    string                     `json:"target"`
	Phase                     VolumePhase                `json:"phase,omitempty"`
	Reason                    string                     `json:"reason,omitempty"`
	Message                   string                     `json:"message,omitempty"`
	PersistentVolumeClaimInfo *PersistentVolumeClaimInfo `json:"persistentVolumeClaimInfo,omitempty"`
	HotplugVolume             *HotplugVolumeStatus       `json:"hotplugVolume,omitempty"`
	Size                      int64                      `json:"size,omitempty"`
	MemoryDumpVolume          *DomainMemoryDumpInfo      `json:"memoryDumpVolume,omitempty"`
	ContainerDiskVolume       *ContainerDiskInfo         `json:"containerDiskVolume,omitempty"`
}

type VolumePhase string

// Values of VolumePhase.
const (
	VolumePending               VolumePhase = "Pending"
	VolumeBound                 VolumePhase = "Bound"
	HotplugVolumeAttachedToNode VolumePhase = "AttachedToNode"
	HotplugVolumeMounted        VolumePhase = "MountedToPod"
	VolumeReady                 VolumePhase = "Ready"
	HotplugVolumeDetaching      VolumePhase = "Detaching"
	HotplugVolumeUnMounted      VolumePhase = "UnMountedFromPod"
	MemoryDumpVolumeCompleted   VolumePhase = "MemoryDumpCompleted"
	MemoryDumpVolumeInProgress  VolumePhase = "MemoryDumpInProgress"
	MemoryDumpVolumeFailed      VolumePhase = "MemoryDumpFailed"
)

type PersistentVolumeClaimInfo struct {
	ClaimName string `json:"claimName,omitempty"`
	// +listType=atomic
	// +optional
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// +optional
	VolumeMode *corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// +optional
	Preallocated bool `json:"preallocated,omitempty"`
	// +optional
	FilesystemOverhead *Percent `json:"filesystemOverhead,omitempty"`
}

// +kubebuilder:validation:Pattern=`^(0(?:\.\d{1,3})?|1)$`
type Percent string

type HotplugVolumeStatus struct {
	AttachPodName string    `json:"attachPodName,omitempty"`
	AttachPodUID  types.UID `json:"attachPodUID,omitempty"`
}

type DomainMemoryDumpInfo struct {
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	EndTimestamp   *metav1.Time `json:"endTimestamp,omitempty"`
	ClaimName      string       `json:"claimName,omitempty"`
	TargetFileName string       `json:"targetFileName,omitempty"`
}

type ContainerDiskInfo struct {
	// +kubebuilder:validation:Format:=int64
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=4294967295
	Checksum uint32 `json:"checksum,omitempty"`
}

type StorageMigratedVolumeInfo struct {
	VolumeName         string                     `json:"volumeName"`
	SourcePVCInfo      *PersistentVolumeClaimInfo `json:"sourcePVCInfo,omitempty"`
	DestinationPVCInfo *PersistentVolumeClaimInfo `json:"destinationPVCInfo,omitempty"`
}
