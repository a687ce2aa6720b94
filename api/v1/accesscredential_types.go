// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package v1

type AccessCredential struct {
	// +optional
	SSHPublicKey *SSHPublicKeyAccessCredential `json:"sshPublicKey,omitempty"`
	// +optional
	UserPassword *UserPasswordAccessCredential `json:"userPassword,omitempty"`
}

type AccessCredentialSecretSource struct {
	SecretName string `json:"secretName"`
}

type SSHPublicKeyAccessCredential struct {
	Source            SSHPublicKeyAccessCredentialSource            `json:"source"`
	PropagationMethod SSHPublicKeyAccessCredentialPropagationMethod `json:"propagationMethod"`
}

type SSHPublicKeyAccessCredentialSource struct {
	// +optional
	Secret *AccessCredentialSecretSource `json:"secret,omitempty"`
}

type SSHPublicKeyAccessCredentialPropagationMethod struct {
	// +optional
	ConfigDrive *ConfigDriveSSHPublicKeyAccessCredentialPropagation `json:"configDrive,omitempty"`
	// +optional
	NoCloud *NoCloudSSHPublicKeyAccessCredentialPropagation `json:"noCloud,omitempty"`
	// +optional
	QemuGuestAgent *QemuGuestAgentSSHPublicKeyAccessCredentialPropagation `json:"qemuGuestAgent,omitempty"`
}

type ConfigDriveSSHPublicKeyAccessCredentialPropagation struct{}

type NoCloudSSHPublicKeyAccessCredentialPropagation struct{}

type QemuGuestAgentSSHPublicKeyAccessCredentialPropagation struct {
	// +listType=set
	Users []string `json:"users"`
}

type UserPasswordAccessCredential struct {
	Source            UserPasswordAccessCredentialSource            `json:"source"`
	PropagationMethod UserPasswordAccessCredentialPropagationMethod `json:"propagationMethod"`
}

type UserPasswordAccessCredentialSource struct {
	// +optional
	Secret *AccessCredentialSecretSource `json:"secret,omitempty"`
}

type UserPasswordAccessCredentialPropagationMethod struct {
	// +optional
	QemuGuestAgent *QemuGuestAgentUserPasswordAccessCredentialPropagation `json:"qemuGuestAgent,omitempty"`
}

type QemuGuestAgentUserPasswordAccessCredentialPropagation struct{}
