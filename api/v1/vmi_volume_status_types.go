// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VolumeStatus is the state of a volume.
type VolumeStatus struct {
	// name is the volume's name in the spec.
	Name string `json:"name"`
	// target is the disk's name in the domain, such as vda.
	Target string `json:"target"`
	// phase is the phase of a hotplugged volume.
	Phase VolumePhase `json:"phase,omitempty"`
	// reason is the reason in one word, for programs.
	Reason string `json:"reason,omitempty"`
	// message is the explanation for people.
	Message string `json:"message,omitempty"`
	// persistentVolumeClaimInfo is what is known about the volume's claim.
	PersistentVolumeClaimInfo *PersistentVolumeClaimInfo `json:"persistentVolumeClaimInfo,omitempty"`
	// hotplugVolume describes a volume that was hotplugged.
	HotplugVolume *HotplugVolumeStatus `json:"hotplugVolume,omitempty"`
	// size is the volume's size in bytes.
	Size int64 `json:"size,omitempty"`
	// memoryDumpVolume describes a memory dump.
	MemoryDumpVolume *DomainMemoryDumpInfo `json:"memoryDumpVolume,omitempty"`
	// containerDiskVolume identifies the image of a containerDisk.
	ContainerDiskVolume *ContainerDiskInfo `json:"containerDiskVolume,omitempty"`
}

// VolumePhase is the state of a volume.
type VolumePhase string

// Values of VolumePhase.
const (
	// VolumePending: its claim is not bound.
	VolumePending VolumePhase = "Pending"
	// VolumeBound: its claim is bound.
	VolumeBound VolumePhase = "Bound"
	// HotplugVolumeAttachedToNode: it is on the node.
	HotplugVolumeAttachedToNode VolumePhase = "AttachedToNode"
	// HotplugVolumeMounted: it is in the launcher Pod.
	HotplugVolumeMounted VolumePhase = "MountedToPod"
	// VolumeReady: the guest has it.
	VolumeReady VolumePhase = "Ready"
	// HotplugVolumeDetaching: it is being detached from the guest.
	HotplugVolumeDetaching VolumePhase = "Detaching"
	// HotplugVolumeUnMounted: it is no longer in the launcher Pod.
	HotplugVolumeUnMounted VolumePhase = "UnMountedFromPod"
	// MemoryDumpVolumeCompleted: it contains a memory dump.
	MemoryDumpVolumeCompleted VolumePhase = "MemoryDumpCompleted"
	// MemoryDumpVolumeInProgress: memory is being written to it.
	MemoryDumpVolumeInProgress VolumePhase = "MemoryDumpInProgress"
	// MemoryDumpVolumeFailed: the memory dump failed.
	MemoryDumpVolumeFailed VolumePhase = "MemoryDumpFailed"
)

// PersistentVolumeClaimInfo is what is known about a claim.
type PersistentVolumeClaimInfo struct {
	// claimName is the claim's name.
	ClaimName string `json:"claimName,omitempty"`
	// accessModes are the claim's access modes.
	// +listType=atomic
	// +optional
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// volumeMode is Filesystem or Block.
	// +optional
	VolumeMode *corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// capacity is what the volume has.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// requests is what the claim requests.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// preallocated is true if the space was filled beforehand, or is to stay allocated: what the guest deletes is not
	// given back. An annotation of the claim whose key contains /storage.preallocation or /storage.thick-provisioned and
	// whose value is true declares that. Set by virt-controller.
	// +optional
	Preallocated bool `json:"preallocated,omitempty"`
	// filesystemOverhead is the part of the volume that its file system takes.
	// +optional
	FilesystemOverhead *Percent `json:"filesystemOverhead,omitempty"`
}

// Percent is a fraction between 0 and 1 with at most three digits.
// +kubebuilder:validation:Pattern=`^(0(?:\.\d{1,3})?|1)$`
type Percent string

// HotplugVolumeStatus describes a volume that was hotplugged.
type HotplugVolumeStatus struct {
	// attachPodName is the Pod that attached it to the node.
	AttachPodName string `json:"attachPodName,omitempty"`
	// attachPodUID is that Pod's UID.
	AttachPodUID types.UID `json:"attachPodUID,omitempty"`
}

// DomainMemoryDumpInfo describes a memory dump.
type DomainMemoryDumpInfo struct {
	// startTimestamp is when it started.
	StartTimestamp *metav1.Time `json:"startTimestamp,omitempty"`
	// endTimestamp is when it finished.
	EndTimestamp *metav1.Time `json:"endTimestamp,omitempty"`
	// claimName is the claim that it is written to.
	ClaimName string `json:"claimName,omitempty"`
	// targetFileName is its file on the claim.
	TargetFileName string `json:"targetFileName,omitempty"`
}

// ContainerDiskInfo identifies the disk of an image.
type ContainerDiskInfo struct {
	// checksum is its CRC-32.
	// +kubebuilder:validation:Format:=int64
	// +kubebuilder:validation:Minimum:=0
	// +kubebuilder:validation:Maximum:=4294967295
	Checksum uint32 `json:"checksum,omitempty"`
}

// StorageMigratedVolumeInfo is a volume that a migration copies.
type StorageMigratedVolumeInfo struct {
	// volumeName is the volume's name in the spec.
	VolumeName string `json:"volumeName"`
	// sourcePVCInfo is the source claim.
	SourcePVCInfo *PersistentVolumeClaimInfo `json:"sourcePVCInfo,omitempty"`
	// destinationPVCInfo is the target claim.
	DestinationPVCInfo *PersistentVolumeClaimInfo `json:"destinationPVCInfo,omitempty"`
}
