// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package create

import (
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// Kinds of cloud-init's data source.
const (
	noCloud     = "nocloud"
	configDrive = "configdrive"
	noCloudInit = "none"
)

func (o *vmOptions) addGuestFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.user, "user", "", "The user that cloud-init creates.")
	flags.StringVar(&o.passwordFile, "password-file", "",
		"A file with the user's password. It is stored in cleartext in the VM.")
	flags.StringSliceVar(&o.sshKeys, "ssh-key", nil, "An SSH key that may log in (repeatable).")
	flags.BoolVar(&o.manageSSH, "ga-manage-ssh", false,
		"Configure SELinux in the guest to let the guest agent manage SSH keys.")
	flags.StringArrayVar(&o.credentials, "access-cred", nil,
		"A Secret with keys or passwords that are kept up to date in the guest (repeatable): "+
			"src:SECRET[,type:ssh|password][,method:ga|nocloud|configdrive][,user:USER].")
	flags.StringVar(&o.cloudInit, "cloud-init", noCloud, "Cloud-init's data source: nocloud, configdrive or none.")
	flags.StringVar(&o.userData, "cloud-init-user-data", "", "Cloud-init's user data, in base64.")
	flags.StringVar(&o.networkData, "cloud-init-network-data", "", "Cloud-init's network data, in base64.")
	for _, flag := range []string{"user", "password-file", "ssh-key", "ga-manage-ssh"} {
		cmd.MarkFlagsMutuallyExclusive("cloud-init-user-data", flag)
	}
}

// changed reports whether the user gave at least one of the flags.
func (b *builder) changed(names ...string) bool {
	return slices.ContainsFunc(names, b.cmd.Flags().Changed)
}

func (b *builder) addCredentials() error {
	b.cloudInitChanged, b.manageSSHIsChosen = b.changed("cloud-init"), b.changed("ga-manage-ssh")
	for _, text := range b.credentials {
		p, err := parseKnown("access-cred", text, "src", "type", "method", "user")
		if err != nil {
			return err
		}
		secret, err := p.localSource("secret")
		if err != nil {
			return err
		}
		var credential v1.AccessCredential
		switch kind := strings.ToLower(p.get("type")); kind {
		case "", "ssh":
			credential.SSHPublicKey, err = b.sshCredential(p, secret)
		case "password":
			credential.UserPassword, err = passwordCredential(p, secret)
		default:
			err = p.errorf("invalid access credential type %q, supported values are: ssh, password", kind)
		}
		if err != nil {
			return err
		}
		spec := &b.vm.Spec.Template.Spec
		spec.AccessCredentials = append(spec.AccessCredentials, credential)
	}
	return nil
}

func (b *builder) sshCredential(p params, secret string) (*v1.SSHPublicKeyAccessCredential, error) {
	credential := &v1.SSHPublicKeyAccessCredential{}
	credential.Source.Secret = &v1.AccessCredentialSecretSource{SecretName: secret}
	method := strings.ToLower(p.get("method"))
	switch method {
	case "", "ga":
		user := p.get("user")
		if user == "" {
			user = b.user
		}
		if user == "" {
			return nil, p.errorf(`user must be specified with access credential ssh method ga ("--user" flag or param "user")`)
		}
		credential.PropagationMethod.QemuGuestAgent = &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{
			Users: []string{user}}
		if !b.manageSSHIsChosen {
			b.manageSSH, b.manageSSHIsChosen = true, true
		}
		return credential, nil
	case noCloud:
		credential.PropagationMethod.NoCloud = &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}
	case configDrive:
		credential.PropagationMethod.ConfigDrive = &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}
	default:
		return nil, p.errorf("invalid access credentials ssh method %q, supported values are: ga, nocloud, configdrive",
			method)
	}
	if p.get("user") != "" {
		return nil, p.errorf("user cannot be specified with selected access credential type and method")
	}
	if !b.cloudInitChanged {
		b.cloudInit, b.cloudInitChanged = method, true
	}
	if !strings.EqualFold(b.cloudInit, method) {
		return nil, p.errorf("method param and value passed to --cloud-init have to match: %s vs %s", method, b.cloudInit)
	}
	return credential, nil
}

func passwordCredential(p params, secret string) (*v1.UserPasswordAccessCredential, error) {
	if method := strings.ToLower(p.get("method")); method != "" && method != "ga" {
		return nil, p.errorf("invalid access credentials password method %q, supported values are: ga", method)
	}
	if p.get("user") != "" {
		return nil, p.errorf("user cannot be specified with selected access credential type and method")
	}
	credential := &v1.UserPasswordAccessCredential{}
	credential.Source.Secret = &v1.AccessCredentialSecretSource{SecretName: secret}
	credential.PropagationMethod.QemuGuestAgent = &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{}
	return credential, nil
}

// addCloudInit adds the volume with the cloud-init data.
func (b *builder) addCloudInit() error {
	content := b.changed("user", "password-file", "ssh-key", "cloud-init-user-data", "cloud-init-network-data") ||
		b.manageSSH
	if !content && !b.cloudInitChanged {
		return nil
	}
	kind := strings.ToLower(b.cloudInit)
	switch kind {
	case noCloud, configDrive:
	case noCloudInit:
		if content {
			_, _ = fmt.Fprintln(b.warn,
				"WARNING: --cloud-init: was set to none, not creating a data source although other cloud-init options were set")
		}
		return nil
	default:
		return flagError("cloud-init",
			"invalid cloud-init data source type %q, supported values are: nocloud, configdrive, none", b.cloudInit)
	}
	for flag, value := range map[string]string{"cloud-init-user-data": b.userData,
		"cloud-init-network-data": b.networkData} {
		if _, err := base64.StdEncoding.DecodeString(value); err != nil {
			return flagError(flag, "it must be base64: %w", err)
		}
	}
	generated := ""
	if b.userData == "" {
		var err error
		if generated, err = b.cloudConfig(); err != nil {
			return err
		}
	}
	source := v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: generated,
		UserDataBase64: b.userData, NetworkDataBase64: b.networkData}}
	if kind == configDrive {
		source = v1.VolumeSource{CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: generated,
			UserDataBase64: b.userData, NetworkDataBase64: b.networkData}}
	}
	return b.addVolume(params{flag: "cloud-init"}, cloudInitDisk, source)
}

// cloudConfig returns the user data of the flags. Values are quoted where YAML requires it.
func (b *builder) cloudConfig() (string, error) {
	lines := []string{"#cloud-config"}
	if b.user != "" {
		lines = append(lines, "user: "+scalar(b.user))
	}
	if b.passwordFile != "" {
		content, err := os.ReadFile(b.passwordFile)
		if err != nil {
			return "", flagError("password-file", "%w", err)
		}
		_, _ = fmt.Fprintln(b.warn, "WARNING: --password-file: The password is stored in cleartext in the VM definition!")
		if password := strings.TrimSpace(string(content)); password != "" {
			lines = append(lines, "password: "+scalar(password), "chpasswd: { expire: False }")
		}
	}
	if len(b.sshKeys) > 0 {
		lines = append(lines, "ssh_authorized_keys:")
		for _, key := range b.sshKeys {
			lines = append(lines, "  - "+scalar(strings.TrimSpace(key)))
		}
	}
	if b.manageSSH {
		lines = append(lines, "runcmd:", "  - [ setsebool, -P, 'virt_qemu_ga_manage_ssh', 'on' ]")
	}
	return strings.Join(lines, "\n"), nil
}

// scalar returns a text as a YAML scalar in one line.
func scalar(text string) string {
	content, err := yaml.Marshal(text)
	if err != nil || strings.Contains(strings.TrimSpace(string(content)), "\n") {
		return fmt.Sprintf("%q", text)
	}
	return strings.TrimSpace(string(content))
}
