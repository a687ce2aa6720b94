// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"encoding/base64"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
