// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

// AccessCredential is a key or a password to bring into the guest. One member is set.
type AccessCredential struct {
	// sshPublicKey is a set of SSH keys.
	// +optional
	SSHPublicKey *SSHPublicKeyAccessCredential `json:"sshPublicKey,omitempty"`
	// userPassword is a set of passwords.
	// +optional
	UserPassword *UserPasswordAccessCredential `json:"userPassword,omitempty"`
}

// SecretName is the name of the Secret that a credential comes from, or empty.
func (c *AccessCredential) SecretName() string {
	switch {
	case c.SSHPublicKey != nil && c.SSHPublicKey.Source.Secret != nil:
		return c.SSHPublicKey.Source.Secret.SecretName
	case c.UserPassword != nil && c.UserPassword.Source.Secret != nil:
		return c.UserPassword.Source.Secret.SecretName
	default:
		return ""
	}
}

// AccessCredentialSecretSource names a Secret.
type AccessCredentialSecretSource struct {
	// secretName is the Secret's name.
	SecretName string `json:"secretName"`
}

// SSHPublicKeyAccessCredential is a set of SSH keys.
type SSHPublicKeyAccessCredential struct {
	// source is where they come from.
	Source SSHPublicKeyAccessCredentialSource `json:"source"`
	// propagationMethod is how they get into the guest.
	PropagationMethod SSHPublicKeyAccessCredentialPropagationMethod `json:"propagationMethod"`
}

// SSHPublicKeyAccessCredentialSource is where keys come from.
type SSHPublicKeyAccessCredentialSource struct {
	// secret is a Secret with a key in each entry.
	// +optional
	Secret *AccessCredentialSecretSource `json:"secret,omitempty"`
}

// SSHPublicKeyAccessCredentialPropagationMethod is how keys get into the guest. One member is set.
type SSHPublicKeyAccessCredentialPropagationMethod struct {
	// configDrive is by cloud-init's ConfigDrive.
	// +optional
	ConfigDrive *ConfigDriveSSHPublicKeyAccessCredentialPropagation `json:"configDrive,omitempty"`
	// noCloud is by cloud-init's NoCloud.
	// +optional
	NoCloud *NoCloudSSHPublicKeyAccessCredentialPropagation `json:"noCloud,omitempty"`
	// qemuGuestAgent is by the guest agent.
	// +optional
	QemuGuestAgent *QemuGuestAgentSSHPublicKeyAccessCredentialPropagation `json:"qemuGuestAgent,omitempty"`
}

// ConfigDriveSSHPublicKeyAccessCredentialPropagation has no options.
type ConfigDriveSSHPublicKeyAccessCredentialPropagation struct{}

// NoCloudSSHPublicKeyAccessCredentialPropagation has no options.
type NoCloudSSHPublicKeyAccessCredentialPropagation struct{}

// QemuGuestAgentSSHPublicKeyAccessCredentialPropagation is by the guest agent.
type QemuGuestAgentSSHPublicKeyAccessCredentialPropagation struct {
	// users are the guest's users that get the keys.
	// +listType=set
	Users []string `json:"users"`
}

// UserPasswordAccessCredential is a set of passwords.
type UserPasswordAccessCredential struct {
	// source is where they come from.
	Source UserPasswordAccessCredentialSource `json:"source"`
	// propagationMethod is how they get into the guest.
	PropagationMethod UserPasswordAccessCredentialPropagationMethod `json:"propagationMethod"`
}

// UserPasswordAccessCredentialSource is where passwords come from.
type UserPasswordAccessCredentialSource struct {
	// secret is a Secret with a password for each user.
	// +optional
	Secret *AccessCredentialSecretSource `json:"secret,omitempty"`
}

// UserPasswordAccessCredentialPropagationMethod is how passwords get into the guest.
type UserPasswordAccessCredentialPropagationMethod struct {
	// qemuGuestAgent is by the guest agent.
	// +optional
	QemuGuestAgent *QemuGuestAgentUserPasswordAccessCredentialPropagation `json:"qemuGuestAgent,omitempty"`
}

// QemuGuestAgentUserPasswordAccessCredentialPropagation has no options.
type QemuGuestAgentUserPasswordAccessCredentialPropagation struct{}
