// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package credentials implements the command credentials, which changes passwords and SSH keys in the Secrets of a VM's
// access credentials. virt-handler propagates them to the running guest.
package credentials

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/optimistic"
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Command returns the command credentials.
func Command(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "credentials",
		Short: "Manipulate credentials on a virtual machine.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(setPassword(c), addKey(c), removeKey(c))
	return cmd
}

// flags are the flags that all commands share.
type flags struct {
	user, secret string
	force        bool
}

func (f *flags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.user, "user", "u", "", "The user in the guest.")
	_ = cmd.MarkFlagRequired("user")
	cmd.Flags().StringVar(&f.secret, "secret", "", "The Secret, if the VM has several. By default the first.")
	cmd.Flags().BoolVar(&f.force, "force", false,
		"Change the Secret even if the VM does not own it, so that other VMs may use it as well.")
}

// target is the VM, with a client of the cluster.
type target struct {
	client.Client
	vm *v1.VirtualMachine
}

func (f *flags) open(ctx context.Context, c *cli.CLI, argument string) (*target, error) {
	_, object, err := c.VM(argument)
	if err != nil {
		return nil, err
	}
	objects, err := c.Objects()
	if err != nil {
		return nil, err
	}
	vm := &v1.VirtualMachine{}
	if err := objects.Get(ctx, client.ObjectKey{Namespace: object.Namespace, Name: object.Name}, vm); err != nil {
		return nil, fmt.Errorf("error getting virtual machine: %w", err)
	}
	if vm.Spec.Template == nil {
		return nil, fmt.Errorf("virtual machine %s has no template", vm.Name)
	}
	return &target{objects, vm}, nil
}

// choose returns the Secret of the flag --secret, or the first of those that the VM's credentials name.
func (f *flags) choose(secrets []string) (string, error) {
	switch {
	case f.secret == "":
		return secrets[0], nil
	case slices.Contains(secrets, f.secret):
		return f.secret, nil
	}
	return "", fmt.Errorf("secret %s is not one of the VM's for this: %v", f.secret, secrets)
}

// secret reads a Secret that may be changed: it must be owned by the VM, unless force is set.
func (t *target) secret(ctx context.Context, name string, force bool) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := t.Get(ctx, client.ObjectKey{Namespace: t.vm.Namespace, Name: name}, secret); err != nil {
		return nil, fmt.Errorf("error getting secret %q: %w", name, err)
	}
	owned := slices.ContainsFunc(secret.OwnerReferences,
		func(o metav1.OwnerReference) bool { return o.UID == t.vm.UID && o.Name == t.vm.Name })
	if !owned && !force {
		return nil, fmt.Errorf(
			"secret %s does not have an owner reference pointing to VM %s: other VMs may use it as well. Use --force to change it", name, t.vm.Name)
	}
	return secret, nil
}

// update writes a Secret's data. It fails if the Secret was changed meanwhile.
func (t *target) update(ctx context.Context, before, after *corev1.Secret) error {
	if err := t.Patch(ctx, after, optimistic.MergeFrom(before)); err != nil {
		return fmt.Errorf("error patching secret %q: %w", after.Name, err)
	}
	return nil
}

// sshSecrets returns the names of the Secrets with keys that the guest agent installs for a user.
func (t *target) sshSecrets(user string) []string {
	var names []string
	for _, credential := range t.vm.Spec.Template.Spec.AccessCredentials {
		ssh := credential.SSHPublicKey
		if ssh != nil && ssh.Source.Secret != nil && ssh.PropagationMethod.QemuGuestAgent != nil &&
			slices.Contains(ssh.PropagationMethod.QemuGuestAgent.Users, user) {
			names = append(names, ssh.Source.Secret.SecretName)
		}
	}
	return names
}

func setPassword(c *cli.CLI) *cobra.Command {
	var f flags
	var password string
	cmd := &cobra.Command{
		Use:   "set-password (VM)",
		Short: "Set password for a user",
		Long:  "Set a user's password in the Secret that the VM's access credentials name. The guest agent sets it in the guest.",
		Example: c.Examples(`
# Set the password of 'jdoe', with a prompt for it:
virtctl credentials set-password --user=jdoe myvm

# Set it in a Secret that the VM does not own:
virtctl credentials set-password --user=jdoe --password=secret --force myvm`),
		Args:              c.OneArgument("VM"),
		ValidArgsFunction: c.CompleteVMs,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := f.open(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			var secrets []string
			for _, credential := range t.vm.Spec.Template.Spec.AccessCredentials {
				if p := credential.UserPassword; p != nil && p.Source.Secret != nil && p.PropagationMethod.QemuGuestAgent != nil {
					secrets = append(secrets, p.Source.Secret.SecretName)
				}
			}
			if len(secrets) == 0 {
				return fmt.Errorf("no secrets assigned to UserPassword AccessCredentials: give %s spec.template.spec.accessCredentials with userPassword first", t.vm.Name)
			}
			name, err := f.choose(secrets)
			if err != nil {
				return err
			}
			if password == "" {
				if password, err = c.ReadPassword("Password of " + f.user + ": "); err != nil {
					return fmt.Errorf("%w: specify it with --password", err)
				}
			}
			secret, err := t.secret(cmd.Context(), name, f.force)
			if err != nil {
				return err
			}
			before := secret.DeepCopy()
			put(secret, f.user, password)
			if err := t.update(cmd.Context(), before, secret); err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Out, "Successfully set password in secret %q\n", name)
			return err
		},
	}
	f.addTo(cmd)
	cmd.Flags().StringVarP(&password, "password", "p", "",
		"The password. By default there is a prompt, which keeps it out of the shell's history.")
	return cmd
}

// put sets a key of a Secret.
func put(secret *corev1.Secret, key, value string) {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[key] = []byte(value)
}

// newKeyName returns a random key for a Secret's data.
func newKeyName() string { return "ssh-key-" + rand.String(5) }

var errNoSecret = errors.New("no secrets specified for this user")
