// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package credentials

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// keySource are the flags with a public key.
type keySource struct{ file, value string }

func (k *keySource) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&k.file, "file", "f", "", "A file with the public key.")
	cmd.Flags().StringVar(&k.value, "value", "", "The public key itself.")
	cmd.MarkFlagsMutuallyExclusive("file", "value")
	cmd.MarkFlagsOneRequired("file", "value")
}

func (k *keySource) read() (string, error) {
	text := k.value
	if k.file != "" {
		content, err := os.ReadFile(k.file)
		if err != nil {
			return "", fmt.Errorf("error getting ssh key: %w", err)
		}
		text = string(content)
	}
	text = strings.TrimSpace(text)
	switch {
	case strings.Contains(text, "PRIVATE KEY"):
		return "", errors.New(
			"error getting ssh key: this is a private key; specify the public key, such as ~/.ssh/id_ed25519.pub")
	case text == "" || strings.Contains(text, "\n"):
		return "", errors.New("error getting ssh key: one public key is needed, in one line")
	}
	return text, nil
}

// equalKeys reports whether two lines have the same key. Their comments may differ.
func equalKeys(line, key string) bool {
	a, b := strings.Fields(line), strings.Fields(key)
	if len(a) < 2 || len(b) < 2 {
		return strings.TrimSpace(line) == strings.TrimSpace(key)
	}
	return a[0] == b[0] && a[1] == b[1]
}

func addKey(c *cli.CLI) *cobra.Command {
	var f flags
	var key keySource
	var create, change bool
	cmd := &cobra.Command{
		Use:   "add-ssh-key (VM)",
		Short: "Add an SSH key to a virtual machine.",
		Long:  "Add a public key to a Secret of the VM's access credentials, or create such a Secret. The guest agent installs the key for the user.",
		Example: c.Examples(`
# Add a key for the user 'jdoe':
virtctl credentials add-ssh-key --user=jdoe --file=~/.ssh/id_ed25519.pub myvm

# Add a key in a new Secret, which a running VM uses after a restart:
virtctl credentials add-ssh-key --create-secret --force --user=jdoe --value='ssh-ed25519 AAAA…' myvm`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := key.read()
			if err != nil {
				return err
			}
			t, err := f.open(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			var message string
			if create || !change && len(t.sshSecrets(f.user)) == 0 {
				message, err = t.newSecret(cmd.Context(), &f, text)
			} else {
				message, err = t.addTo(cmd.Context(), &f, text)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.Out, message)
			return err
		},
	}
	f.addTo(cmd)
	key.addTo(cmd)
	cmd.Flags().BoolVar(&create, "create-secret", false, "Create a new Secret. A running VM needs --force and a restart.")
	cmd.Flags().BoolVar(&change, "update-secret", false, "Add to an existing Secret.")
	cmd.MarkFlagsMutuallyExclusive("create-secret", "update-secret")
	return cmd
}

// newSecret creates a Secret with the key and adds it to the VM's access credentials.
func (t *target) newSecret(ctx context.Context, f *flags, key string) (string, error) {
	if !f.force {
		err := t.Get(ctx, client.ObjectKeyFromObject(t.vm), &v1.VirtualMachineInstance{})
		if err == nil {
			return "", fmt.Errorf(
				"virtual machine %s is running. Use --force flag to update a running VM, it will take effect after restart",
				t.vm.Name)
		}
		if !apierrors.IsNotFound(err) {
			return "", err
		}
	}
	isController := true
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		GenerateName: t.vm.Name + "-ssh-key-", Namespace: t.vm.Namespace,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1.GroupVersion.String(), Kind: "VirtualMachine", Name: t.vm.Name, UID: t.vm.UID,
			Controller: &isController,
		}},
	}}
	put(secret, newKeyName(), key)
	if err := t.Create(ctx, secret); err != nil {
		return "", fmt.Errorf("error creating secret: %w", err)
	}
	before := t.vm.DeepCopy()
	credential := &v1.SSHPublicKeyAccessCredential{}
	credential.Source.Secret = &v1.AccessCredentialSecretSource{SecretName: secret.Name}
	credential.PropagationMethod.QemuGuestAgent = &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{
		Users: []string{f.user}}
	spec := &t.vm.Spec.Template.Spec
	spec.AccessCredentials = append(spec.AccessCredentials, v1.AccessCredential{SSHPublicKey: credential})
	if err := t.Patch(ctx, t.vm, optimistic.MergeFrom(before)); err != nil {
		return "", errors.Join(fmt.Errorf("error patching virtual machine: %w", err), t.Delete(ctx, secret))
	}
	return fmt.Sprintf("Successfully created secret %q and added it to VM %s", secret.Name, t.vm.Name), nil
}

// addTo adds the key to a Secret that the VM has.
func (t *target) addTo(ctx context.Context, f *flags, key string) (string, error) {
	secret, err := t.sshSecret(ctx, f)
	if err != nil {
		return "", err
	}
	for _, lines := range secret.Data {
		for line := range strings.Lines(string(lines)) {
			if equalKeys(line, key) {
				return fmt.Sprintf("Secret %q already contains this SSH key.", secret.Name), nil
			}
		}
	}
	before := secret.DeepCopy()
	put(secret, newKeyName(), key)
	return fmt.Sprintf("Successfully added the key to secret %q", secret.Name), t.update(ctx, before, secret)
}

func (t *target) sshSecret(ctx context.Context, f *flags) (*corev1.Secret, error) {
	secrets := t.sshSecrets(f.user)
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%w: %s", errNoSecret, f.user)
	}
	name, err := f.choose(secrets)
	if err != nil {
		return nil, err
	}
	return t.secret(ctx, name, f.force)
}

func removeKey(c *cli.CLI) *cobra.Command {
	var f flags
	var key keySource
	cmd := &cobra.Command{
		Use:   "remove-ssh-key (VM)",
		Short: "Remove an SSH key from a virtual machine.",
		Example: c.Examples(`
# Remove a key of the user 'jdoe':
virtctl credentials remove-ssh-key --user=jdoe --file=~/.ssh/id_ed25519.pub myvm`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := key.read()
			if err != nil {
				return err
			}
			t, err := f.open(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			secret, err := t.sshSecret(cmd.Context(), &f)
			if err != nil {
				return err
			}
			before := secret.DeepCopy()
			if !removeFrom(secret, text) {
				return fmt.Errorf("secret %q does not contain this SSH key", secret.Name)
			}
			if err := t.update(cmd.Context(), before, secret); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Out, "Successfully removed the key from secret %q\n", secret.Name)
			return err
		},
	}
	f.addTo(cmd)
	key.addTo(cmd)
	return cmd
}

// removeFrom removes a key from a Secret's data and reports whether it was there.
func removeFrom(secret *corev1.Secret, key string) bool {
	found := false
	for name, content := range secret.Data {
		var kept []string
		for line := range strings.Lines(string(content)) {
			if equalKeys(line, key) {
				found = true
			} else {
				kept = append(kept, line)
			}
		}
		if text := strings.Join(kept, ""); text == "" {
			delete(secret.Data, name)
		} else {
			secret.Data[name] = []byte(text)
		}
	}
	return found
}
