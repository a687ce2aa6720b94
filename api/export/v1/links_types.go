// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// VirtualMachineExportLinks are the addresses of what is exported. Each is opened by the token, in the header
// x-kubevirt-export-token or in the query parameter of that name.
type VirtualMachineExportLinks struct {
	// internal are the addresses within the cluster.
	// +optional
	Internal *VirtualMachineExportLink `json:"internal,omitempty"`
	// external are the addresses from outside. There are some only if the cluster has an Ingress or a Route to
	// virt-exportproxy.
	// +optional
	External *VirtualMachineExportLink `json:"external,omitempty"`
}

// VirtualMachineExportLink are the addresses of what is exported, from one side.
type VirtualMachineExportLink struct {
	// cert is the certificate by which the server's is checked, as PEM.
	Cert string `json:"cert"`
	// volumes are the volumes, by name.
	// +listType=map
	// +listMapKey=name
	// +optional
	Volumes []VirtualMachineExportVolume `json:"volumes,omitempty"`
	// backups are the volumes of a backup, by name.
	// +listType=map
	// +listMapKey=name
	// +optional
	Backups []VirtualMachineExportBackup `json:"backups,omitempty"`
	// manifests are the manifests from which the VM can be made elsewhere, by type.
	// +listType=map
	// +listMapKey=type
	// +optional
	Manifests []VirtualMachineExportManifest `json:"manifests,omitempty"`
}

// VirtualMachineExportManifest is the address of manifests.
type VirtualMachineExportManifest struct {
	// type is all, auth-header-secret or oci.
	Type ExportManifestType `json:"type"`
	// url is the address.
	Url string `json:"url"`
}

// ExportManifestType is what an address of manifests gives.
type ExportManifestType string

// Values of ExportManifestType.
const (
	// AllManifests is everything but the Secret with the token: the VM, its DataVolumes and a ConfigMap with the
	// certificate.
	AllManifests ExportManifestType = "all"
	// AuthHeader is a Secret with the token as a header, as CDI takes it.
	AuthHeader ExportManifestType = "auth-header-secret"
	// OCI is the VM as an OCI image layout in a tar archive.
	OCI ExportManifestType = "oci"
)

// VirtualMachineExportVolume is one volume and the forms in which it can be downloaded.
type VirtualMachineExportVolume struct {
	// name is the name of the claim.
	Name string `json:"name"`
	// formats are the forms: raw and gzip for a disk, dir and tar.gz for a file system.
	// +listType=map
	// +listMapKey=format
	// +optional
	Formats []VirtualMachineExportVolumeFormat `json:"formats,omitempty"`
}

// VirtualMachineExportVolumeFormat is the address of a volume in one form.
type VirtualMachineExportVolumeFormat struct {
	// format is raw, gzip, dir or tar.gz.
	Format ExportVolumeFormat `json:"format"`
	// url is the address.
	Url string `json:"url"`
}

// ExportVolumeFormat is a form in which a volume can be downloaded.
type ExportVolumeFormat string

// Values of ExportVolumeFormat.
const (
	// KubeVirtRaw is the disk's bytes.
	KubeVirtRaw ExportVolumeFormat = "raw"
	// KubeVirtGz is the disk's bytes, compressed by gzip.
	KubeVirtGz ExportVolumeFormat = "gzip"
	// Dir is the volume's root directory, file by file.
	Dir ExportVolumeFormat = "dir"
	// ArchiveGz is the volume's root directory as a tar archive, compressed by gzip.
	ArchiveGz ExportVolumeFormat = "tar.gz"
)

// VirtualMachineExportBackup is one volume of a backup.
type VirtualMachineExportBackup struct {
	// name is the name of the volume in the VM.
	Name string `json:"name"`
	// endpoints are its addresses, by what they give.
	// +listType=map
	// +listMapKey=endpoint
	// +optional
	Endpoints []VirtualMachineExportBackupEndpoint `json:"endpoints,omitempty"`
}

// VirtualMachineExportBackupEndpoint is an address of one volume of a backup.
type VirtualMachineExportBackupEndpoint struct {
	// endpoint is map or data.
	Endpoint ExportBackupEndpoint `json:"endpoint"`
	// url is the address.
	Url string `json:"url"`
}

// ExportBackupEndpoint is what an address of a backup gives.
type ExportBackupEndpoint string

// Values of ExportBackupEndpoint.
const (
	// Map is which blocks the backup has.
	Map ExportBackupEndpoint = "map"
	// Data is the blocks' bytes.
	Data ExportBackupEndpoint = "data"
)
