// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DataVolumeSpec is the specification of a DataVolume of the Containerized Data Importer (cdi.kubevirt.io/v1beta1): a
// PersistentVolumeClaim and what to fill it with. That project's own webhook validates it when the DataVolume is
// created; here only its structure is defined.
type DataVolumeSpec struct {
	// source is where the data comes from; exactly one of its members is set. Either source or sourceRef. Set by the
	// user.
	// +optional
	Source *DataVolumeSource `json:"source,omitempty"`
	// sourceRef names a DataSource that knows where the data comes from. Either source or sourceRef. Set by the user.
	// +optional
	SourceRef *DataVolumeSourceRef `json:"sourceRef,omitempty"`
	// pvc is the claim, taken as it is. Either pvc or storage. Set by the user.
	PVC *corev1.PersistentVolumeClaimSpec `json:"pvc,omitempty"`
	// storage is the claim, with missing fields chosen by the importer from its profile of the storage class. Either
	// pvc or storage. Set by the user.
	Storage *StorageSpec `json:"storage,omitempty"`
	// priorityClassName is the priority class of the Pods that fill the claim. Default: the cluster's. Set by the user.
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// contentType is the content of the source: kubevirt is a disk image (the default), archive a tar archive of files.
	// Set by the user.
	// +kubebuilder:validation:Enum="kubevirt";"archive"
	ContentType DataVolumeContentType `json:"contentType,omitempty"`
	// checkpoints are the snapshots of a disk that are copied one after the other while its VM still runs elsewhere. Set
	// by the user.
	Checkpoints []DataVolumeCheckpoint `json:"checkpoints,omitempty"`
	// finalCheckpoint is true if no checkpoint follows the present one. Default: false. Set by the user.
	FinalCheckpoint bool `json:"finalCheckpoint,omitempty"`
	// preallocation takes all of the space at once. Default: the importer's configuration. Set by the user.
	Preallocation *bool `json:"preallocation,omitempty"`
}

// StorageSpec is a PersistentVolumeClaim of which the importer fills in what is missing.
type StorageSpec struct {
	// accessModes are how nodes may mount the volume. Default: the importer's profile of the storage class. Set by the
	// user.
	// +optional
	AccessModes []corev1.PersistentVolumeAccessMode `json:"accessModes,omitempty"`
	// selector picks among existing volumes by label. Set by the user.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
	// resources defines how large the volume is, in requests.storage. Set by the user.
	// +optional
	Resources corev1.VolumeResourceRequirements `json:"resources,omitempty"`
	// volumeName binds the claim to one volume. Set by the user.
	// +optional
	VolumeName string `json:"volumeName,omitempty"`
	// storageClassName is the storage class. Default: the cluster's default for VMs, then for everything. Set by the user.
	// +optional
	StorageClassName *string `json:"storageClassName,omitempty"`
	// volumeMode is Filesystem or Block. Default: the importer's profile of the storage class. Set by the user.
	// +optional
	VolumeMode *corev1.PersistentVolumeMode `json:"volumeMode,omitempty"`
	// dataSource names what a volume driver fills the volume from: a snapshot or another claim. Set by the user.
	// +optional
	DataSource *corev1.TypedLocalObjectReference `json:"dataSource,omitempty"`
	// dataSourceRef names what fills the volume: any object that has a populator, in any namespace. Set by the user.
	// +optional
	DataSourceRef *corev1.TypedObjectReference `json:"dataSourceRef,omitempty"`
}

// DataVolumeCheckpoint is one step of a copy in several.
type DataVolumeCheckpoint struct {
	// previous is the snapshot of the step before; empty in the first.
	Previous string `json:"previous"`
	// current is the snapshot that this step copies up to.
	Current string `json:"current"`
}

// DataVolumeContentType is the content of the source of a DataVolume .
type DataVolumeContentType string

// Values of DataVolumeContentType.
const (
	// DataVolumeKubeVirt is a disk image.
	DataVolumeKubeVirt DataVolumeContentType = "kubevirt"
	// DataVolumeArchive is a tar archive, unpacked into the volume.
	DataVolumeArchive DataVolumeContentType = "archive"
)

// DataVolumeSource is where the data of a DataVolume comes from. Exactly one member is set.
type DataVolumeSource struct {
	// http downloads over HTTP.
	HTTP *DataVolumeSourceHTTP `json:"http,omitempty"`
	// s3 downloads from an S3 bucket.
	S3 *DataVolumeSourceS3 `json:"s3,omitempty"`
	// gcs downloads from a Google Cloud Storage bucket.
	GCS *DataVolumeSourceGCS `json:"gcs,omitempty"`
	// registry takes the disk out of a container image.
	Registry *DataVolumeSourceRegistry `json:"registry,omitempty"`
	// pvc copies another claim.
	PVC *DataVolumeSourcePVC `json:"pvc,omitempty"`
	// upload waits for a client that sends the data.
	Upload *DataVolumeSourceUpload `json:"upload,omitempty"`
	// blank is an empty disk.
	Blank *DataVolumeBlankImage `json:"blank,omitempty"`
	// imageio copies a disk of oVirt.
	Imageio *DataVolumeSourceImageIO `json:"imageio,omitempty"`
	// vddk copies a disk of vSphere.
	VDDK *DataVolumeSourceVDDK `json:"vddk,omitempty"`
	// snapshot copies a VolumeSnapshot.
	Snapshot *DataVolumeSourceSnapshot `json:"snapshot,omitempty"`
}

// DataVolumeSourcePVC names the claim that is copied.
type DataVolumeSourcePVC struct {
	// namespace is the claim's namespace.
	Namespace string `json:"namespace"`
	// name is the claim's name.
	Name string `json:"name"`
}

// DataVolumeSourceSnapshot names the VolumeSnapshot that is copied.
type DataVolumeSourceSnapshot struct {
	// namespace is the snapshot's namespace.
	Namespace string `json:"namespace"`
	// name is the snapshot's name.
	Name string `json:"name"`
}

// DataVolumeBlankImage is an empty disk. It has no options.
type DataVolumeBlankImage struct{}

// DataVolumeSourceUpload is data that a client sends. It has no options.
type DataVolumeSourceUpload struct{}

// DataVolumeSourceS3 is an object in an S3 bucket.
type DataVolumeSourceS3 struct {
	// url is the object's URL.
	URL string `json:"url"`
	// secretRef names a Secret with accessKeyId and secretKey. Default: no credentials.
	SecretRef string `json:"secretRef,omitempty"`
	// certConfigMap names a ConfigMap with certificates to trust besides the usual ones.
	// +optional
	CertConfigMap string `json:"certConfigMap,omitempty"`
}

// DataVolumeSourceGCS is an object in a Google Cloud Storage bucket.
type DataVolumeSourceGCS struct {
	// url is the object's URL.
	URL string `json:"url"`
	// secretRef names a Secret with a service account's key. Default: no credentials.
	SecretRef string `json:"secretRef,omitempty"`
}

// DataVolumeSourceRegistry is a disk in a container image. Either url or imageStream is set.
type DataVolumeSourceRegistry struct {
	// url is the image, with the scheme docker:// or oci-archive://.
	// +optional
	URL *string `json:"url,omitempty"`
	// imageStream names an image stream of OpenShift.
	// +optional
	ImageStream *string `json:"imageStream,omitempty"`
	// pullMethod is pod (the default: the importer's Pod downloads) or node (the node's container runtime pulls).
	// +optional
	PullMethod *RegistryPullMethod `json:"pullMethod,omitempty"`
	// secretRef names a Secret with accessKeyId and secretKey. Default: no credentials.
	// +optional
	SecretRef *string `json:"secretRef,omitempty"`
	// certConfigMap names a ConfigMap with certificates to trust besides the usual ones.
	// +optional
	CertConfigMap *string `json:"certConfigMap,omitempty"`
	// platform picks among the images of an index.
	// +optional
	Platform *PlatformOptions `json:"platform,omitempty"`
}

// PlatformOptions pick one image of an index.
type PlatformOptions struct {
	// architecture is the CPU architecture in Go's spelling, such as amd64. Default: that of the node.
	// +optional
	Architecture string `json:"architecture,omitempty"`
}

// RegistryPullMethod is who downloads a container image for the importer.
type RegistryPullMethod string

// Values of RegistryPullMethod.
const (
	// RegistryPullPod lets the importer's Pod download.
	RegistryPullPod RegistryPullMethod = "pod"
	// RegistryPullNode lets the node's container runtime pull.
	RegistryPullNode RegistryPullMethod = "node"
)

// DataVolumeSourceHTTP is a file behind an HTTP or HTTPS URL.
type DataVolumeSourceHTTP struct {
	// url is the file's URL.
	URL string `json:"url"`
	// secretRef names a Secret with accessKeyId (the user) and secretKey (the password). Default: no credentials.
	// +optional
	SecretRef string `json:"secretRef,omitempty"`
	// certConfigMap names a ConfigMap with certificates to trust besides the usual ones.
	// +optional
	CertConfigMap string `json:"certConfigMap,omitempty"`
	// extraHeaders are header lines that are sent with each request.
	// +optional
	ExtraHeaders []string `json:"extraHeaders,omitempty"`
	// secretExtraHeaders name Secrets with one more header line each.
	// +optional
	SecretExtraHeaders []string `json:"secretExtraHeaders,omitempty"`
}

// DataVolumeSourceImageIO is a disk of oVirt.
type DataVolumeSourceImageIO struct {
	// url is the URL of oVirt's engine.
	URL string `json:"url"`
	// diskId is the disk's identifier.
	DiskID string `json:"diskId"`
	// secretRef names a Secret with accessKeyId (the user) and secretKey (the password).
	SecretRef string `json:"secretRef,omitempty"`
	// certConfigMap names a ConfigMap with certificates to trust besides the usual ones.
	CertConfigMap string `json:"certConfigMap,omitempty"`
	// insecureSkipVerify takes any certificate. Default: false.
	InsecureSkipVerify *bool `json:"insecureSkipVerify,omitempty"`
}

// DataVolumeSourceVDDK is a disk of vSphere.
type DataVolumeSourceVDDK struct {
	// url is the vCenter or ESXi host.
	URL string `json:"url,omitempty"`
	// uuid is the identifier of the VM that the disk belongs to.
	UUID string `json:"uuid,omitempty"`
	// backingFile is the disk's path in its datastore.
	BackingFile string `json:"backingFile,omitempty"`
	// thumbprint is the fingerprint of the host's certificate.
	Thumbprint string `json:"thumbprint,omitempty"`
	// secretRef names a Secret with accessKeyId (the user) and secretKey (the password).
	SecretRef string `json:"secretRef,omitempty"`
	// initImageURL is a container image with the VDDK library. Default: the one in the importer's configuration.
	InitImageURL string `json:"initImageURL,omitempty"`
	// extraArgs names a ConfigMap with options for the VDDK library.
	ExtraArgs string `json:"extraArgs,omitempty"`
}

// DataVolumeSourceRef names an object that knows the source.
type DataVolumeSourceRef struct {
	// kind is DataSource.
	Kind string `json:"kind"`
	// namespace is the object's namespace. Default: that of the DataVolume.
	// +optional
	Namespace *string `json:"namespace,omitempty"`
	// name is the object's name.
	Name string `json:"name"`
}
