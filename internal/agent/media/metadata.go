// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

// noCloudMetadata returns the metadata of a NoCloud medium, with KubeVirt's values. The instance ID does not change when a VM
// restarts or when it was created with KubeVirt, so that cloud-init does not configure the guest again.
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

// publicKeys returns the SSH keys of all credentials with a propagation method, numbered in the order of the spec. Each entry of
// a Secret is a key.
func (p *preparer) publicKeys(carried func(*v1.SSHPublicKeyAccessCredentialPropagationMethod) bool) (map[string]string, error) {
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
				return nil, &InvalidError{Retryable: true, Err: fmt.Errorf("the Secrets of accessCredentials: %w: the keys have more than %d bytes",
					ErrTooMuch, maxFileBytes)}
			}
			if key := strings.TrimSpace(string(files[name])); key != "" {
				keys[strconv.Itoa(len(keys))] = key
			}
		}
	}
	return keys, nil
}
