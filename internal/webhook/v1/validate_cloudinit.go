// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/base64"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// maxInlineCloudInit is KubeVirt's limit in bytes for inline user data, and for inline network data. Larger data
// belongs in a Secret.
const maxInlineCloudInit = 2048

// cloudInitPart is user data or network data with its three possible sources.
type cloudInitPart struct {
	name      string // in messages
	reference string // the field for larger data
	secret    *corev1.LocalObjectReference
	base64    string
	plain     string
	base64At  *field.Path
}

func checkCloudInit(c *check) {
	count := 0
	for i := range c.spec.Volumes {
		volume, at := &c.spec.Volumes[i], c.at("volumes").Index(i)
		var user, network cloudInitPart
		switch {
		case volume.CloudInitNoCloud != nil:
			s := volume.CloudInitNoCloud
			at = at.Child("cloudInitNoCloud")
			user = cloudInitPart{secret: s.UserDataSecretRef, base64: s.UserDataBase64, plain: s.UserData}
			network = cloudInitPart{secret: s.NetworkDataSecretRef, base64: s.NetworkDataBase64, plain: s.NetworkData}
		case volume.CloudInitConfigDrive != nil:
			s := volume.CloudInitConfigDrive
			at = at.Child("cloudInitConfigDrive")
			user = cloudInitPart{secret: s.UserDataSecretRef, base64: s.UserDataBase64, plain: s.UserData}
			network = cloudInitPart{secret: s.NetworkDataSecretRef, base64: s.NetworkDataBase64, plain: s.NetworkData}
		default:
			continue
		}
		count++
		user.name, user.reference, user.base64At = "userdata", "UserDataSecretRef (JSON: secretRef)",
			at.Child("userDataBase64")
		network.name, network.reference = "networkdata", "NetworkDataSecretRef (JSON: networkDataSecretRef)"
		network.base64At = at.Child("networkDataBase64")
		if c.cloudInitPart(at, user)+c.cloudInitPart(at, network) == 0 {
			c.invalid(at, volume.Name, "%s must have at least one userdatasource or one networkdatasource set.", at)
		}
	}
	if count > 1 {
		c.invalid(c.at("volumes"), count, "%s must have max one cloudInitNoCloud or cloudInitConfigDrive volume set",
			c.at("volumes"))
	}
}

// cloudInitPart checks one part and returns how many sources it has.
func (c *check) cloudInitPart(at *field.Path, part cloudInitPart) int {
	n, size := 0, len(part.plain)
	if part.secret != nil && part.secret.Name != "" {
		n++
	}
	if part.plain != "" {
		n++
	}
	if part.base64 != "" {
		n++
		data, err := base64.StdEncoding.DecodeString(part.base64)
		if err != nil {
			// The value is not part of the message, because it may contain a password.
			c.invalid(part.base64At, "(not shown)", "%s is not a valid base64 value.", part.base64At)
		}
		size = max(size, len(data))
	}
	if n > 1 {
		c.invalid(at, "(not shown)", "%s must have only one %s source set.", at, part.name)
	}
	if size > maxInlineCloudInit {
		c.invalid(at, "(not shown)", "%s %s exceeds %d byte limit. Should use %s for larger data.",
			at, part.name, maxInlineCloudInit, part.reference)
	}
	return n
}

func checkAccessCredentials(c *check) {
	p := c.at("accessCredentials")
	if c.tooMany(p, len(c.spec.AccessCredentials)) {
		return
	}
	for i := range c.spec.AccessCredentials {
		credential, at := &c.spec.AccessCredentials[i], p.Index(i)
		if (credential.SSHPublicKey == nil) == (credential.UserPassword == nil) {
			c.invalid(at, "accessCredential", "%s must have exactly one access credential type set", at)
		}
		if credential.SSHPublicKey != nil {
			c.sshKey(at, credential.SSHPublicKey)
		}
		if password := credential.UserPassword; password != nil {
			if password.Source.Secret == nil {
				c.required(at.Child("userPassword", "source"), "%s must have exactly one source set", at)
			}
			if password.PropagationMethod.QemuGuestAgent == nil {
				c.required(at.Child("userPassword", "propagationMethod"), "%s must have exactly one propagationMethod set", at)
			}
		}
	}
}

func (c *check) sshKey(at *field.Path, key *v1.SSHPublicKeyAccessCredential) {
	p, method := at.Child("sshPublicKey"), &key.PropagationMethod
	noCloud, configDrive := false, false
	for i := range c.spec.Volumes {
		noCloud = noCloud || c.spec.Volumes[i].CloudInitNoCloud != nil
		configDrive = configDrive || c.spec.Volumes[i].CloudInitConfigDrive != nil
	}
	n := 0
	if method.NoCloud != nil {
		n++
		if !noCloud {
			c.invalid(p.Child("propagationMethod"), "noCloud",
				"%s requires a noCloud volume to exist when the noCloud propagationMethod is in use.", at)
		}
	}
	if method.ConfigDrive != nil {
		n++
		if !configDrive {
			c.invalid(p.Child("propagationMethod"), "configDrive",
				"%s requires a configDrive volume to exist when the configDrive propagationMethod is in use.", at)
		}
	}
	if method.QemuGuestAgent != nil {
		n++
		if len(method.QemuGuestAgent.Users) == 0 {
			c.required(p.Child("propagationMethod", "qemuGuestAgent", "users"),
				"%s requires at least one user to be present in the users list", at)
		}
	}
	if n != 1 {
		c.invalid(p.Child("propagationMethod"), n, "%s must have exactly one propagationMethod set", at)
	}
	if key.Source.Secret == nil {
		c.required(p.Child("source"), "%s must have exactly one source set", at)
	}
}
