// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

type Volume struct {
	Name         string `json:"name"`
	VolumeSource `json:",inline"`
}

type VolumeSource struct {
	// +optional
	HostDisk *HostDisk `json:"hostDisk,omitempty"`
	// +optional
	PersistentVolumeClaim *PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
	// +optional
	CloudInitNoCloud *CloudInitNoCloudSource `json:"cloudInitNoCloud,omitempty"`
	// +optional
	CloudInitConfigDrive *CloudInitConfigDriveSource `json:"cloudInitConfigDrive,omitempty"`
	// +optional
	Sysprep *SysprepSource `json:"sysprep,omitempty"`
	// +optional
	ContainerDisk *ContainerDiskSource `json:"containerDisk,omitempty"`
	// +optional
	Ephemeral *EphemeralVolumeSource `json:"ephemeral,omitempty"`
	// +optional
	EmptyDisk *EmptyDiskSource `json:"emptyDisk,omitempty"`
	// +optional
	DataVolume *DataVolumeSource `json:"dataVolume,omitempty"`
	// +optional
	ConfigMap *ConfigMapVolumeSource `json:"configMap,omitempty"`
	// +optional
	Secret *SecretVolumeSource `json:"secret,omitempty"`
	// +optional
	DownwardAPI *DownwardAPIVolumeSource `json:"downwardAPI,omitempty"`
	// +optional
	ServiceAccount  *ServiceAccountVolumeSource  `json:"serviceAccount,omitempty"`
	DownwardMetrics *DownwardMetricsVolumeSource `json:"downwardMetrics,omitempty"`
	MemoryDump      *MemoryDumpVolumeSource      `json:"memoryDump,omitempty"`
	// +optional
	ContainerPath *ContainerPathVolumeSource `json:"containerPath,omitempty"`
}

type PersistentVolumeClaimVolumeSource struct {
	corev1.PersistentVolumeClaimVolumeSource `json:",inline"`
	// +optional
	Hotpluggable bool `json:"hotpluggable,omitempty"`
}

type DataVolumeSource struct {
	Name string `json:"name"`
	// +optional
	Hotpluggable bool `json:"hotpluggable,omitempty"`
}

type ContainerDiskSource struct {
	Image           string `json:"image"`
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
	Path            string `json:"path,omitempty"`
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
}

type CloudInitNoCloudSource struct {
	// +optional
	UserDataSecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`
	// +optional
	UserDataBase64 string `json:"userDataBase64,omitempty"`
	// +optional
	UserData string `json:"userData,omitempty"`
	// +optional
	NetworkDataSecretRef *corev1.LocalObjectReference `json:"networkDataSecretRef,omitempty"`
	// +optional
	NetworkDataBase64 string `json:"networkDataBase64,omitempty"`
	// +optional
	NetworkData string `json:"networkData,omitempty"`
}

type CloudInitConfigDriveSource struct {
	// +optional
	UserDataSecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`
	// +optional
	UserDataBase64 string `json:"userDataBase64,omitempty"`
	// +optional
	UserData string `json:"userData,omitempty"`
	// +optional
	NetworkDataSecretRef *corev1.LocalObjectReference `json:"networkDataSecretRef,omitempty"`
	// +optional
	NetworkDataBase64 string `json:"networkDataBase64,omitempty"`
	// +optional
	NetworkData string `json:"networkData,omitempty"`
}

type EmptyDiskSource struct {
	Capacity resource.Quantity `json:"capacity"`
}

type EphemeralVolumeSource struct {
	// +optional
	PersistentVolumeClaim *corev1.PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
}

type HostDisk struct {
	Path string       `json:"path"`
	Type HostDiskType `json:"type"`
	// +optional
	Capacity resource.Quantity `json:"capacity,omitempty"`
	Shared   *bool             `json:"shared,omitempty"`
}

type HostDiskType string

// Values of HostDiskType.
const (
	HostDiskExistsOrCreate HostDiskType = "DiskOrCreate"
	HostDiskExists         HostDiskType = "Disk"
)

type ConfigMapVolumeSource struct {
	corev1.LocalObjectReference `json:",inline"`
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// +optional
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

type SecretVolumeSource struct {
	SecretName string `json:"secretName,omitempty"`
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// +optional
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

type ServiceAccountVolumeSource struct {
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
}

type DownwardAPIVolumeSource struct {
	// +optional
	Fields []corev1.DownwardAPIVolumeFile `json:"fields,omitempty"`
	// +optional
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

type DownwardMetricsVolumeSource struct{}

type SysprepSource struct {
	// +optional
	Secret *corev1.LocalObjectReference `json:"secret,omitempty"`
	// +optional
	ConfigMap *corev1.LocalObjectReference `json:"configMap,omitempty"`
}

type MemoryDumpVolumeSource struct {
	// +optional
	PersistentVolumeClaimVolumeSource `json:",inline"`
}

type ContainerPathVolumeSource struct {
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="path must be absolute (start with '/')"
	// +kubebuilder:validation:XValidation:rule="!self.contains('..')",message="path must not contain '..'"
	Path string `json:"path"`
	// +optional
	// +kubebuilder:default:=true
	// +kubebuilder:validation:XValidation:rule="self == true",message="readOnly must be true, write access is not supported"
	ReadOnly *bool `json:"readOnly,omitempty"`
}

type UtilityVolume struct {
	Name                                     string `json:"name"`
	corev1.PersistentVolumeClaimVolumeSource `json:",inline"`
	// +optional
	Type *UtilityVolumeType `json:"type,omitempty"`
}

type UtilityVolumeType string

// Values of UtilityVolumeType.
const (
	MemoryDump UtilityVolumeType = "MemoryDump"
	Backup     UtilityVolumeType = "Backup"
)
