// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// maxCloudInit bounds user data and network data: a Secret cannot be larger.
const maxCloudInit = corev1.MaxSecretSize

// datasource describes a cloud-init volume: its data, and the layout of its kind.
type datasource struct {
	userData, networkData document
	// label is the volume label by which cloud-init finds the medium.
	label string
	// metaFile, userFile and networkFile are the paths of metadata, user data and network data.
	metaFile, userFile, networkFile string
	// carries reports whether SSH keys with a propagation method are on the medium.
	carries  func(*v1.SSHPublicKeyAccessCredentialPropagationMethod) bool
	metadata func(vmi *v1.VirtualMachineInstance, keys map[string]string, devices []device) any
}

// document is user data or network data: a Secret, base64 text or plain text.
type document struct {
	field    string
	secret   *corev1.LocalObjectReference
	keys     []string
	pod      func(volume string) string
	encoded  string
	verbatim string
}

// noCloud returns the layout of cloud-init's NoCloud datasource.
// Source: https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html
func noCloud(s *v1.CloudInitNoCloudSource) datasource {
	return datasource{
		userData:    userData(s.UserDataSecretRef, s.UserDataBase64, s.UserData),
		networkData: networkData(s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData),
		label:       "cidata",
		metaFile:    "meta-data", userFile: "user-data", networkFile: "network-config",
		carries:  func(m *v1.SSHPublicKeyAccessCredentialPropagationMethod) bool { return m.NoCloud != nil },
		metadata: noCloudMetadata,
	}
}

// configDrive returns the layout of OpenStack's config drive.
// Source: https://cloudinit.readthedocs.io/en/latest/reference/datasources/configdrive.html
func configDrive(s *v1.CloudInitConfigDriveSource) datasource {
	const dir = "openstack/latest/"
	return datasource{
		userData:    userData(s.UserDataSecretRef, s.UserDataBase64, s.UserData),
		networkData: networkData(s.NetworkDataSecretRef, s.NetworkDataBase64, s.NetworkData),
		label:       "config-2",
		metaFile:    dir + "meta_data.json", userFile: dir + "user_data", networkFile: dir + "network_data.json",
		carries:  func(m *v1.SSHPublicKeyAccessCredentialPropagationMethod) bool { return m.ConfigDrive != nil },
		metadata: configDriveMetadata,
	}
}

func userData(secret *corev1.LocalObjectReference, encoded, verbatim string) document {
	return document{
		field: "userData", secret: secret, keys: []string{"userdata", "userData"}, pod: launcherpod.UserDataVolume,
		encoded: encoded, verbatim: verbatim,
	}
}

func networkData(secret *corev1.LocalObjectReference, encoded, verbatim string) document {
	return document{
		field: "networkData", secret: secret, keys: []string{"networkdata", "networkData"},
		pod: launcherpod.NetworkDataVolume, encoded: encoded, verbatim: verbatim,
	}
}

// cloudInit creates a medium that the guest's cloud-init finds by its label.
func (p *preparer) cloudInit(ctx context.Context, v *v1.Volume, source datasource) (*domain.DiskFact, error) {
	files, err := p.cloudInitFiles(v.Name, source, nil)
	if err != nil {
		return nil, err
	}
	return p.medium(ctx, v.Name, source.label, files)
}

func (p *preparer) cloudInitFiles(volume string, source datasource, devices []device) (map[string][]byte, error) {
	keys, err := p.publicKeys(source.carries)
	if err != nil {
		return nil, err
	}
	meta, err := json.Marshal(source.metadata(p.vmi, keys, devices))
	if err != nil {
		return nil, fmt.Errorf("write the metadata: %w", err)
	}
	user, err := p.read(volume, source.userData)
	if err != nil {
		return nil, err
	}
	network, err := p.read(volume, source.networkData)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{source.metaFile: meta, source.userFile: user}
	if len(network) > 0 {
		files[source.networkFile] = network
	}
	return files, nil
}

// read returns a document's content. Errors in a Secret are retryable; those in the VMI's spec are not.
func (p *preparer) read(volume string, d document) ([]byte, error) {
	data := []byte(d.verbatim)
	switch {
	case d.secret != nil:
		var err error
		data, err = p.content.Secret(d.pod(volume), d.keys...)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &InvalidError{Retryable: true,
				Err: fmt.Errorf("Secret %q has neither the key %q nor %q: add one of them",
					d.secret.Name, d.keys[0], d.keys[1])}
		}
		if err != nil {
			return nil, fmt.Errorf("read Secret %q: %w", d.secret.Name, err)
		}
	case d.encoded != "":
		var err error
		if data, err = base64.StdEncoding.DecodeString(d.encoded); err != nil {
			return nil, invalid("%sBase64 is not base64: %w", d.field, err)
		}
	}
	if len(data) > maxCloudInit {
		return nil, invalid("%s has %d bytes, more than %d", d.field, len(data), maxCloudInit)
	}
	return data, nil
}

// noCloudMetadata returns the metadata of a NoCloud medium, with KubeVirt's values. The instance ID does not change
// when a VM restarts or when it was created with KubeVirt, so that cloud-init does not configure the guest again.
// Source: kubevirt/kubevirt pkg/cloud-init/cloud-init.go, NoCloudMetadata.
func noCloudMetadata(vmi *v1.VirtualMachineInstance, keys map[string]string, _ []device) any {
	return struct {
		InstanceType  string            `json:"instance-type,omitempty"`
		InstanceID    string            `json:"instance-id"`
		LocalHostname string            `json:"local-hostname,omitempty"`
		PublicKeys    map[string]string `json:"public-keys,omitempty"`
	}{instanceType(vmi), instanceUUID(vmi), hostname(vmi), keys}
}

// configDriveMetadata returns the metadata of a config drive, with KubeVirt's values.
// Source: kubevirt/kubevirt pkg/cloud-init/cloud-init.go, ConfigDriveMetadata.
func configDriveMetadata(vmi *v1.VirtualMachineInstance, keys map[string]string, devices []device) any {
	name := hostname(vmi)
	return struct {
		InstanceType  string            `json:"instance_type,omitempty"`
		InstanceID    string            `json:"instance_id"`
		LocalHostname string            `json:"local_hostname,omitempty"`
		Hostname      string            `json:"hostname,omitempty"`
		UUID          string            `json:"uuid,omitempty"`
		Devices       []device          `json:"devices,omitempty"`
		PublicKeys    map[string]string `json:"public_keys,omitempty"`
	}{instanceType(vmi), vmi.Name + "." + vmi.Namespace, name, name, instanceUUID(vmi), devices, keys}
}

// instanceUUID returns the UUID that the guest's firmware has.
func instanceUUID(vmi *v1.VirtualMachineInstance) string {
	if f := vmi.Spec.Domain.Firmware; f != nil && f.UUID != "" {
		return string(f.UUID)
	}
	return string(vmi.UID)
}

// instanceType returns the name of the VMI's instance type. A cluster instance type has precedence.
func instanceType(vmi *v1.VirtualMachineInstance) string {
	if name := vmi.Annotations[v1.ClusterInstancetypeAnnotation]; name != "" {
		return name
	}
	return vmi.Annotations[v1.InstancetypeAnnotation]
}

// hostname returns the guest's host name: the spec's, or the first label of the VMI's name, at most 63 bytes long.
func hostname(vmi *v1.VirtualMachineInstance) string {
	name := vmi.Spec.Hostname
	if name == "" {
		name, _, _ = strings.Cut(vmi.Name, ".")
	}
	return strings.TrimRight(name[:min(len(name), 63)], "-")
}

// publicKeys returns the SSH keys of all credentials with a propagation method, numbered in the order of the spec. Each
// entry of a Secret is a key.
func (p *preparer) publicKeys(
	carried func(*v1.SSHPublicKeyAccessCredentialPropagationMethod) bool,
) (map[string]string, error) {
	keys, left := map[string]string{}, maxFileBytes
	for i := range p.vmi.Spec.AccessCredentials {
		credential := &p.vmi.Spec.AccessCredentials[i]
		secret := credential.SecretName()
		if credential.SSHPublicKey == nil || !carried(&credential.SSHPublicKey.PropagationMethod) || secret == "" {
			continue
		}
		files, err := p.content.Files(SecretVolume, launcherpod.CredentialsVolume(secret))
		if errors.Is(err, ErrTooMuch) {
			return nil, &InvalidError{Retryable: true, Err: fmt.Errorf("Secret %s of accessCredentials: %w", secret, err)}
		}
		if err != nil {
			return nil, fmt.Errorf("read Secret %s of accessCredentials: %w", secret, err)
		}
		for _, name := range slices.Sorted(maps.Keys(files)) {
			if left -= len(files[name]); left < 0 {
				return nil, &InvalidError{Retryable: true,
					Err: fmt.Errorf("the Secrets of accessCredentials: %w: the keys have more than %d bytes",
						ErrTooMuch, maxFileBytes)}
			}
			if key := strings.TrimSpace(string(files[name])); key != "" {
				keys[strconv.Itoa(len(keys))] = key
			}
		}
	}
	return keys, nil
}
