// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Volume is the source of a disk.
type Volume struct {
	// name is its name and that of its disk. A DNS label.
	Name         string `json:"name"`
	VolumeSource `json:",inline"`
}

// VolumeSource is the kind of a volume. One member is set.
type VolumeSource struct {
	// hostDisk is a file of the node; needs the feature gate HostDisk.
	// +optional
	HostDisk *HostDisk `json:"hostDisk,omitempty"`
	// persistentVolumeClaim is a claim of the namespace.
	// +optional
	PersistentVolumeClaim *PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
	// cloudInitNoCloud is a medium for cloud-init's NoCloud source.
	// +optional
	CloudInitNoCloud *CloudInitNoCloudSource `json:"cloudInitNoCloud,omitempty"`
	// cloudInitConfigDrive is a medium for cloud-init's ConfigDrive source.
	// +optional
	CloudInitConfigDrive *CloudInitConfigDriveSource `json:"cloudInitConfigDrive,omitempty"`
	// sysprep is a medium with an answer file for Windows.
	// +optional
	Sysprep *SysprepSource `json:"sysprep,omitempty"`
	// containerDisk is a disk in a container image; what the guest writes is lost with the VMI.
	// +optional
	ContainerDisk *ContainerDiskSource `json:"containerDisk,omitempty"`
	// ephemeral is a claim whose changes are lost with the VMI.
	// +optional
	Ephemeral *EphemeralVolumeSource `json:"ephemeral,omitempty"`
	// emptyDisk is an empty disk that is lost with the VMI.
	// +optional
	EmptyDisk *EmptyDiskSource `json:"emptyDisk,omitempty"`
	// dataVolume is the claim of a DataVolume.
	// +optional
	DataVolume *DataVolumeSource `json:"dataVolume,omitempty"`
	// configMap is a medium with the files of a ConfigMap.
	// +optional
	ConfigMap *ConfigMapVolumeSource `json:"configMap,omitempty"`
	// secret is a medium with the files of a Secret.
	// +optional
	Secret *SecretVolumeSource `json:"secret,omitempty"`
	// downwardAPI is a medium with metadata of the VMI.
	// +optional
	DownwardAPI *DownwardAPIVolumeSource `json:"downwardAPI,omitempty"`
	// serviceAccount is a medium with a service account's token.
	// +optional
	ServiceAccount *ServiceAccountVolumeSource `json:"serviceAccount,omitempty"`
	// downwardMetrics is a disk with metrics of the node.
	DownwardMetrics *DownwardMetricsVolumeSource `json:"downwardMetrics,omitempty"`
	// memoryDump takes memory dumps.
	MemoryDump *MemoryDumpVolumeSource `json:"memoryDump,omitempty"`
	// containerPath is a path of the launcher's container, for a file system.
	// +optional
	ContainerPath *ContainerPathVolumeSource `json:"containerPath,omitempty"`
}

// PersistentVolumeClaimVolumeSource is a claim of the namespace. Mode Filesystem contains the file disk.img, which is
// created if it is missing.
type PersistentVolumeClaimVolumeSource struct {
	corev1.PersistentVolumeClaimVolumeSource `json:",inline"`
	// hotpluggable is true if it can be unplugged from a running guest. Default: false.
	// +optional
	Hotpluggable bool `json:"hotpluggable,omitempty"`
}

// DataVolumeSource is the claim of a DataVolume.
type DataVolumeSource struct {
	// name is the name of the DataVolume and of its claim.
	Name string `json:"name"`
	// hotpluggable is true if it can be unplugged from a running guest. Default: false.
	// +optional
	Hotpluggable bool `json:"hotpluggable,omitempty"`
}

// ContainerDiskSource is a disk in a container image.
type ContainerDiskSource struct {
	// image is the image.
	Image string `json:"image"`
	// imagePullSecret names the Secret with the registry's credentials.
	ImagePullSecret string `json:"imagePullSecret,omitempty"`
	// path is the disk's path in the image. Default: the one file under /disk.
	Path string `json:"path,omitempty"`
	// imagePullPolicy is Always, Never or IfNotPresent. Default: Always for the tag latest or none, otherwise
	// IfNotPresent.
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
}

// CloudInitNoCloudSource is data for cloud-init. Each part has at most one source.
type CloudInitNoCloudSource struct {
	// secretRef names the Secret with user data in the key userdata or userData.
	// +optional
	UserDataSecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`
	// userDataBase64 is user data in base64, at most 2048 bytes.
	// +optional
	UserDataBase64 string `json:"userDataBase64,omitempty"`
	// userData is user data, at most 2048 bytes.
	// +optional
	UserData string `json:"userData,omitempty"`
	// networkDataSecretRef names the Secret with network data in the key networkdata or networkData.
	// +optional
	NetworkDataSecretRef *corev1.LocalObjectReference `json:"networkDataSecretRef,omitempty"`
	// networkDataBase64 is network data in base64, at most 2048 bytes.
	// +optional
	NetworkDataBase64 string `json:"networkDataBase64,omitempty"`
	// networkData is network data, at most 2048 bytes.
	// +optional
	NetworkData string `json:"networkData,omitempty"`
}

// CloudInitConfigDriveSource is data for cloud-init. Each part has at most one source.
type CloudInitConfigDriveSource struct {
	// secretRef names the Secret with user data in the key userdata or userData.
	// +optional
	UserDataSecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`
	// userDataBase64 is user data in base64, at most 2048 bytes.
	// +optional
	UserDataBase64 string `json:"userDataBase64,omitempty"`
	// userData is user data, at most 2048 bytes.
	// +optional
	UserData string `json:"userData,omitempty"`
	// networkDataSecretRef names the Secret with network data in the key networkdata or networkData.
	// +optional
	NetworkDataSecretRef *corev1.LocalObjectReference `json:"networkDataSecretRef,omitempty"`
	// networkDataBase64 is network data in base64, at most 2048 bytes.
	// +optional
	NetworkDataBase64 string `json:"networkDataBase64,omitempty"`
	// networkData is network data, at most 2048 bytes.
	// +optional
	NetworkData string `json:"networkData,omitempty"`
}

// EmptyDiskSource is an empty disk.
type EmptyDiskSource struct {
	// capacity is its size.
	Capacity resource.Quantity `json:"capacity"`
}

// EphemeralVolumeSource is a claim whose changes are lost with the VMI.
type EphemeralVolumeSource struct {
	// persistentVolumeClaim is the claim; it is not written to.
	// +optional
	PersistentVolumeClaim *corev1.PersistentVolumeClaimVolumeSource `json:"persistentVolumeClaim,omitempty"`
}

// HostDisk is a file of the node.
type HostDisk struct {
	// path is the file's path on the node. User 107 must be able to read and write it, and to make it in its directory if
	// it is not there: virt-handler does not change who owns the node's files.
	Path string `json:"path"`
	// type is Disk for a file that exists, or DiskOrCreate.
	Type HostDiskType `json:"type"`
	// capacity is the size of a file that is made; up to pvcTolerateLessSpaceUpToPercent less is taken where the node has
	// less. Only with type DiskOrCreate, which needs it unless the file is there.
	// +optional
	Capacity resource.Quantity `json:"capacity,omitempty"`
	// shared is true if the path is the same storage on all nodes. Default: false.
	Shared *bool `json:"shared,omitempty"`
}

// HostDiskType defines whether the file may be made.
type HostDiskType string

// Values of HostDiskType.
const (
	// HostDiskExistsOrCreate makes it when it is missing.
	HostDiskExistsOrCreate HostDiskType = "DiskOrCreate"
	// HostDiskExists needs it to exist.
	HostDiskExists HostDiskType = "Disk"
)

// ConfigMapVolumeSource is a medium with the files of a ConfigMap.
type ConfigMapVolumeSource struct {
	corev1.LocalObjectReference `json:",inline"`
	// optional lets the guest start without it. Default: false.
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// volumeLabel is the medium's label. Default: none.
	// +optional
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

// SecretVolumeSource is a medium with the files of a Secret.
type SecretVolumeSource struct {
	// secretName is the Secret's name.
	SecretName string `json:"secretName,omitempty"`
	// optional lets the guest start without it. Default: false.
	// +optional
	Optional *bool `json:"optional,omitempty"`
	// volumeLabel is the medium's label. Default: none.
	// +optional
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

// ServiceAccountVolumeSource is a medium with a service account's token.
type ServiceAccountVolumeSource struct {
	// serviceAccountName is the service account's name.
	ServiceAccountName string `json:"serviceAccountName,omitempty"`
}

// DownwardAPIVolumeSource is a medium with metadata of the VMI.
type DownwardAPIVolumeSource struct {
	// fields are its files.
	// +optional
	Fields []corev1.DownwardAPIVolumeFile `json:"fields,omitempty"`
	// volumeLabel is the medium's label. Default: none.
	// +optional
	VolumeLabel string `json:"volumeLabel,omitempty"`
}

// DownwardMetricsVolumeSource is a disk with metrics of the node, as vhostmd writes it.
type DownwardMetricsVolumeSource struct{}

// SysprepSource is an answer file for Windows. One member is set.
type SysprepSource struct {
	// secret names a Secret with autounattend.xml or unattend.xml.
	// +optional
	Secret *corev1.LocalObjectReference `json:"secret,omitempty"`
	// configMap names a ConfigMap with autounattend.xml or unattend.xml.
	// +optional
	ConfigMap *corev1.LocalObjectReference `json:"configMap,omitempty"`
}

// MemoryDumpVolumeSource is a claim that takes memory dumps.
type MemoryDumpVolumeSource struct {
	// +optional
	PersistentVolumeClaimVolumeSource `json:",inline"`
}

// ContainerPathVolumeSource is a path of the launcher's container.
type ContainerPathVolumeSource struct {
	// path is the absolute path, below a mount of the container.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/')",message="path must be absolute (start with '/')"
	// +kubebuilder:validation:XValidation:rule="!self.contains('..')",message="path must not contain '..'"
	Path string `json:"path"`
	// readOnly keeps the guest from writing. Default and only value: true.
	// +optional
	// +kubebuilder:default:=true
	// +kubebuilder:validation:XValidation:rule="self == true",message="readOnly must be true, write access is not supported"
	ReadOnly *bool `json:"readOnly,omitempty"`
}

// UtilityVolume is a volume of the launcher Pod that is no disk.
type UtilityVolume struct {
	// name is its name, unlike that of any volume.
	Name                                     string `json:"name"`
	corev1.PersistentVolumeClaimVolumeSource `json:",inline"`
	// type is MemoryDump or Backup.
	// +optional
	Type *UtilityVolumeType `json:"type,omitempty"`
}

// UtilityVolumeType defines what a utility volume is for.
type UtilityVolumeType string

// Values of UtilityVolumeType.
const (
	// MemoryDump takes memory dumps.
	MemoryDump UtilityVolumeType = "MemoryDump"
	// Backup takes backups.
	Backup UtilityVolumeType = "Backup"
)

// WrittenClaim is the name of the PersistentVolumeClaim with what the guest writes to a volume, or empty if none does:
// that of a claim, or of a DataVolume, whose claim has its name. A claim below an ephemeral overlay is only read.
func (v *Volume) WrittenClaim() string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name
	default:
		return ""
	}
}

// IsHotpluggable reports whether a volume may be plugged into a running guest and unplugged: that of a claim or a
// DataVolume whose hotpluggable is set.
func (v *Volume) IsHotpluggable() bool {
	return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.Hotpluggable ||
		v.DataVolume != nil && v.DataVolume.Hotpluggable
}
