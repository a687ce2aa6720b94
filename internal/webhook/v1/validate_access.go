// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/vireo-project/vireo/api/v1"
)

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
