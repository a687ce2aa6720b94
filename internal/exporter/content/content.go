// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package content describes what an exporter serves: virt-controller writes it into an annotation of the exporter's
// Pod, and the kubelet makes it available to virt-exportserver as a file. The package also defines the names and paths
// that these, virt-exportproxy and virtctl share.
package content

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TokenHeader is the header, and the query parameter, with the token that gives access to an export. KubeVirt's.
const TokenHeader = "x-kubevirt-export-token" //nolint:gosec // a name

// TokenNeeded is the response to a request without the token.
const TokenNeeded = "the token of the export is needed, in the header or query parameter " + TokenHeader

// TokenKey is the key of the token in its Secret. KubeVirt's.
const TokenKey = "token"

// Port is the port of the exporter's server and of virt-exportproxy, and ServicePort that of their Services.
// KubeVirt's.
const (
	Port        = 8443
	ServicePort = 443
)

// ReadinessPath is the path of the exporter's readiness probe. KubeVirt's.
const ReadinessPath = "/exportready"

// Directories of the exporter's Pod.
const (
	// VolumeDirectory contains a directory for each exported claim with a file system, and DeviceDirectory a device for
	// each other claim.
	VolumeDirectory = "/export-volumes"
	DeviceDirectory = "/dev/export-volumes"
	// CertificateDirectory contains tls.crt and tls.key.
	CertificateDirectory = "/var/run/virt-exporter/certificate"
	// TokenDirectory contains the token.
	TokenDirectory = "/var/run/virt-exporter/token" //nolint:gosec // a path
	// ContentDirectory contains the content.
	ContentDirectory = "/var/run/virt-exporter/content"
	// ContentFile is the name of the file in it.
	ContentFile = "content.json"
)

// MaxSize is the maximum size of a content, in bytes. All annotations of an object together may have 256 KiB.
const MaxSize = 200 << 10

// maxVolumes is the maximum number of volumes: those that admission allows for a VM, and the persistent state.
const maxVolumes = 256 + 1

// Content is what an exporter serves.
type Content struct {
	// Export is the name of the VirtualMachineExport.
	Export string `json:"export"`
	// Volumes are the exported claims.
	Volumes []Volume `json:"volumes"`
	// Manifests are the manifests from which the VM can be created in another cluster, or nil if no VM is exported.
	Manifests *Manifests `json:"manifests,omitempty"`
	// OCI reports whether the VM and its disks are also served as an OCI image. It needs Manifests.
	OCI bool `json:"oci,omitempty"`
	// Backup is the backup that is served, or nil. An export of a backup has no Volumes.
	Backup *Backup `json:"backup,omitempty"`
}

// Volume is an exported claim.
type Volume struct {
	// Name is its name in URLs, that of the claim that is exported.
	Name string `json:"name"`
	// Claim is the name of the VM's claim, if the exported one was created from its snapshot. It is empty otherwise:
	// see ClaimName.
	Claim string `json:"claim,omitempty"`
	// Block reports whether the claim is a block device.
	Block bool `json:"block,omitempty"`
	// Disk reports whether it contains the disk of a VM, as the device or as the file disk.img. Of other claims, the
	// files are served.
	Disk bool `json:"disk,omitempty"`
}

// Manifests are the manifests from which a VM can be created in another cluster.
type Manifests struct {
	// VirtualMachine is the VM. Its dataVolumeTemplates have no source.
	VirtualMachine map[string]any `json:"virtualMachine"`
	// Templates are the names of the volumes that fill the VM's dataVolumeTemplates, by the name of the template.
	Templates map[string]string `json:"templates,omitempty"`
	// DataVolumes are the other DataVolumes that the VM needs.
	DataVolumes []DataVolume `json:"dataVolumes,omitempty"`
	// Internal and External are the addresses for downloads from inside and outside of the cluster. External is nil if
	// the latter are not possible.
	Internal *Side `json:"internal,omitempty"`
	External *Side `json:"external,omitempty"`
}

// DataVolume is a DataVolume that creates a claim of the VM.
type DataVolume struct {
	// Name is its name and that of the claim.
	Name string `json:"name"`
	// Volume is the name of the exported volume that fills it.
	Volume string `json:"volume"`
	// Size is the size of the claim.
	Size string `json:"size"`
	// VolumeMode is Block or Filesystem, or empty for the default of the storage.
	VolumeMode string `json:"volumeMode,omitempty"`
}

// Side is an address at which the volumes can be downloaded.
type Side struct {
	// Address is the host, and the path on it, without a scheme.
	Address string `json:"address"`
	// CA contains the certificates by which the server's certificate is verified, as PEM; empty if the system's are used.
	CA string `json:"ca,omitempty"`
}

// Paths of a server.
const (
	volumePath  = "/volumes/"
	diskFile    = "disk.img"
	gzipFile    = "disk.img.gz"
	archiveFile = "disk.tar.gz"
	directory   = "dir"
	// AllPath and SecretPath follow the name of the side.
	AllPath    = "/manifests/all"
	SecretPath = "/manifests/secret" //nolint:gosec // a path
	// OCIPath is the path of the OCI image, which is the same for both sides.
	OCIPath = "/export.oci.tar"
	// InternalSide and ExternalSide are the names of the sides.
	InternalSide = "/internal"
	ExternalSide = "/external"
)

// RawPath returns the path of a disk's bytes. KubeVirt's, as are the other paths.
func (v Volume) RawPath() string { return volumePath + v.Name + "/" + diskFile }

// GzipPath returns the path of a disk's compressed bytes.
func (v Volume) GzipPath() string { return volumePath + v.Name + "/" + gzipFile }

// DirectoryPath returns the path of the root directory of a volume. Its files are below.
func (v Volume) DirectoryPath() string { return volumePath + v.Name + "/" + directory }

// ArchivePath returns the path of a volume's compressed archive.
func (v Volume) ArchivePath() string { return volumePath + v.Name + "/" + archiveFile }

// ClaimName returns the name of the claim in the exported VM.
func (v Volume) ClaimName() string {
	if v.Claim != "" {
		return v.Claim
	}
	return v.Name
}

// Mount returns where the volume is in the exporter's Pod: a directory or a device.
func (v Volume) Mount() string {
	if v.Block {
		return path.Join(DeviceDirectory, v.Name)
	}
	return path.Join(VolumeDirectory, v.Name)
}

// Parse parses a content and validates it, because names become parts of paths.
func Parse(raw []byte) (*Content, error) {
	if len(raw) > MaxSize {
		return nil, fmt.Errorf("the content of the export has %d bytes: at most %d are accepted", len(raw), MaxSize)
	}
	c := &Content{}
	if err := json.Unmarshal(raw, c); err != nil {
		return nil, fmt.Errorf("read the content of the export: %w", err)
	}
	if len(c.Volumes) > maxVolumes {
		return nil, fmt.Errorf("the export has %d volumes: at most %d are served", len(c.Volumes), maxVolumes)
	}
	errs := []error{checkName("export", c.Export)}
	seen := map[string]bool{}
	for _, v := range c.Volumes {
		errs = append(errs, checkName("volume", v.Name), checkName("claim of a volume", v.ClaimName()))
		if seen[v.Name] {
			errs = append(errs, fmt.Errorf("two volumes have the name %q", v.Name))
		}
		seen[v.Name] = true
		if v.Block && !v.Disk {
			errs = append(errs, fmt.Errorf("volume %q is a block device, which has no files", v.Name))
		}
	}
	if c.OCI && c.Manifests == nil {
		errs = append(errs, errors.New("an OCI image needs the manifest of a VM"))
	}
	if c.Backup != nil {
		errs = append(errs, c.Backup.check())
		if len(c.Volumes) > 0 {
			errs = append(errs, errors.New("an export has either volumes or a backup, and not both"))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

func checkName(what, name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("the name %q of the %s is not valid: %s", name, what, strings.Join(problems, ", "))
	}
	return nil
}

// Volume returns the volume with this name.
func (c *Content) Volume(name string) (Volume, bool) {
	for _, v := range c.Volumes {
		if v.Name == name {
			return v, true
		}
	}
	return Volume{}, false
}

// maxLabel is the maximum length of a Service's name. Source: k8s.io/apimachinery pkg/util/validation,
// DNS1035LabelMaxLength.
const maxLabel = 63

// ServiceName returns the name of an export's Service and Pod. KubeVirt's, unless it is too long.
func ServiceName(export string) string {
	name := "virt-export-" + strings.ReplaceAll(export, ".", "-")
	if len(name) <= maxLabel {
		return name
	}
	sum := sha256.Sum256([]byte(export))
	suffix := "-" + hex.EncodeToString(sum[:])[:8]
	return name[:maxLabel-len(suffix)] + suffix
}

// ServerName returns the name in the certificate of an export's server, which is that of its Service.
func ServerName(namespace, export string) string {
	return ServiceName(export) + "." + namespace + ".svc"
}

// ProxyService is the Service of virt-exportproxy. KubeVirt's.
const ProxyService = "virt-exportproxy"

// ProxyPath returns the path of an export at virt-exportproxy. KubeVirt's.
func ProxyPath(namespace, export string) string {
	return "/api/export.kubevirt.io/v1/namespaces/" + namespace + "/virtualmachineexports/" + export
}

// defaultArchitecture is the architecture of an image of a VM that names none. KubeVirt's.
const defaultArchitecture = "amd64"

// ImageConfig returns the VM as the configuration of an OCI image, and its architecture. As in KubeVirt, the VM has no
// namespace, and the names of claims instead of DataVolumes: a user who imports the image creates the claims from its
// layers.
func (c *Content) ImageConfig() (config []byte, architecture string, err error) {
	vm := runtime.DeepCopyJSON(c.Manifests.VirtualMachine)
	unstructured.RemoveNestedField(vm, "metadata", "namespace")
	unstructured.RemoveNestedField(vm, "spec", "dataVolumeTemplates")
	spec, _, _ := unstructured.NestedMap(vm, "spec", "template", "spec")
	volumes, _ := spec["volumes"].([]any)
	for i := range volumes {
		volumes[i] = onClaim(volumes[i])
	}
	if len(volumes) > 0 {
		if err := unstructured.SetNestedSlice(vm, volumes, "spec", "template", "spec", "volumes"); err != nil {
			return nil, "", fmt.Errorf("write the volumes of the VM: %w", err)
		}
	}
	architecture, _ = spec["architecture"].(string)
	if architecture == "" {
		architecture = defaultArchitecture
	}
	if config, err = json.Marshal(vm); err != nil {
		return nil, "", fmt.Errorf("write the VM: %w", err)
	}
	return config, architecture, nil
}

// onClaim returns a volume with the claim of its DataVolume, which has the same name.
func onClaim(volume any) any {
	fields, _ := volume.(map[string]any)
	dataVolume, found := fields["dataVolume"].(map[string]any)
	if !found {
		return volume
	}
	return map[string]any{"name": fields["name"], "persistentVolumeClaim": map[string]any{"claimName": dataVolume["name"]}}
}

// CAKey is the key of the certificates in the ConfigMap of the manifests. KubeVirt's, which CDI reads.
const CAKey = "ca.pem"

// CAName returns the name of the ConfigMap with the certificates with which CDI verifies the server.
func CAName(export string) string { return "export-ca-cm-" + export }

// HeaderSecretName returns the name of the Secret with the header that CDI sends.
func HeaderSecretName(export string) string { return "header-secret-" + export }

// SecretManifest returns the Secret with the token as a header, in CDI's format.
func (c *Content) SecretManifest(token string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": HeaderSecretName(c.Export)},
		"stringData": map[string]any{TokenKey: TokenHeader + ":" + token},
	}
}

// AllManifests returns the manifests from which the VM can be created with downloads from this address, except for the
// Secret: the ConfigMap with the certificates, the VM and its DataVolumes.
func (c *Content) AllManifests(side Side) []map[string]any {
	out := make([]map[string]any, 0, len(c.Manifests.DataVolumes)+2)
	if side.CA != "" {
		out = append(out, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": CAName(c.Export)},
			"data": map[string]any{CAKey: side.CA},
		})
	}
	out = append(out, c.virtualMachine(side))
	for _, dv := range c.Manifests.DataVolumes {
		volume, found := c.Volume(dv.Volume)
		if !found {
			continue
		}
		storage := map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": dv.Size}}}
		if dv.VolumeMode != "" {
			storage["volumeMode"] = dv.VolumeMode
		}
		spec := map[string]any{"storage": storage}
		c.fill(spec, volume, side)
		out = append(out, map[string]any{
			"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": map[string]any{"name": dv.Name},
			"spec": spec,
		})
	}
	return out
}

// virtualMachine returns the VM, whose DataVolume templates download the exported volumes.
func (c *Content) virtualMachine(side Side) map[string]any {
	vm := runtime.DeepCopyJSON(c.Manifests.VirtualMachine)
	spec, _ := vm["spec"].(map[string]any)
	templates, _ := spec["dataVolumeTemplates"].([]any)
	for i := range templates {
		template, _ := templates[i].(map[string]any)
		metadata, _ := template["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		volume, found := c.Volume(c.Manifests.Templates[name])
		inner, isMap := template["spec"].(map[string]any)
		if found && isMap {
			delete(inner, "sourceRef")
			c.fill(inner, volume, side)
		}
	}
	return vm
}

// fill sets the source of a DataVolume.
func (c *Content) fill(spec map[string]any, volume Volume, side Side) {
	file := volume.GzipPath()
	if !volume.Disk {
		file = volume.ArchivePath()
		spec["contentType"] = "archive"
	}
	http := map[string]any{"url": "https://" + side.Address + file,
		"secretExtraHeaders": []any{HeaderSecretName(c.Export)}}
	if side.CA != "" {
		http["certConfigMap"] = CAName(c.Export)
	}
	spec["source"] = map[string]any{"http": http}
}
