// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package credentials has the command credentials: passwords and SSH keys of a guest's users, in the Secrets that the VM's access
// credentials name. What is in those reaches a running guest by itself.
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
	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// Command makes the command credentials.
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

// flags are those that the commands share.
type flags struct {
	user, secret string
	force        bool
}

func (f *flags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.user, "user", "u", "", "The user in the guest.")
	_ = cmd.MarkFlagRequired("user")
	cmd.Flags().StringVar(&f.secret, "secret", "", "The Secret, if the VM has several. By default the first.")
	cmd.Flags().BoolVar(&f.force, "force", false, "Change the Secret even if it is not the VM's own, so that other VMs may have it as well.")
}

// target is a VM and the way to the cluster.
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

// choose is the Secret that is meant, among those that the VM's credentials name.
func (f *flags) choose(secrets []string) (string, error) {
	switch {
	case f.secret == "":
		return secrets[0], nil
	case slices.Contains(secrets, f.secret):
		return f.secret, nil
	}
	return "", fmt.Errorf("secret %s is not one of the VM's for this: %v", f.secret, secrets)
}

// secret reads a Secret that may be changed: one of the VM's own, unless it is forced.
func (t *target) secret(ctx context.Context, name string, force bool) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := t.Get(ctx, client.ObjectKey{Namespace: t.vm.Namespace, Name: name}, secret); err != nil {
		return nil, fmt.Errorf("error getting secret %q: %w", name, err)
	}
	owned := slices.ContainsFunc(secret.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == t.vm.UID && o.Name == t.vm.Name })
	if !owned && !force {
		return nil, fmt.Errorf("secret %s does not have an owner reference pointing to VM %s: other VMs may have it as well. --force changes it nevertheless", name, t.vm.Name)
	}
	return secret, nil
}

// update writes a Secret's data. Who changed it meanwhile wins.
func (t *target) update(ctx context.Context, before, after *corev1.Secret) error {
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := t.Patch(ctx, after, patch); err != nil {
		return fmt.Errorf("error patching secret %q: %w", after.Name, err)
	}
	return nil
}

// sshSecrets are the Secrets with keys that the guest agent gives to a user.
func (t *target) sshSecrets(user string) []string {
	var names []string
	for _, credential := range t.vm.Spec.Template.Spec.AccessCredentials {
		ssh := credential.SSHPublicKey
		if ssh != nil && ssh.Source.Secret != nil && ssh.PropagationMethod.QemuGuestAgent != nil && slices.Contains(ssh.PropagationMethod.QemuGuestAgent.Users, user) {
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
		Long:  "Set a user's password in the Secret that the VM's access credentials name. The guest agent brings it into the guest.",
		Example: c.Examples(`
# Set the password of 'jdoe', which is asked for:
virtctl credentials set-password --user=jdoe myvm

# In a Secret that is not the VM's own:
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
					return fmt.Errorf("%w: give it with --password", err)
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
	cmd.Flags().StringVarP(&password, "password", "p", "", "The password. It is asked for if it is not given, which keeps it out of the shell's history.")
	return cmd
}

// put sets a key of a Secret.
func put(secret *corev1.Secret, key, value string) {
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[key] = []byte(value)
}

// newKeyName is a key of a Secret that nobody uses.
func newKeyName() string { return "ssh-key-" + rand.String(randomLength) }

// randomLength is how long the random part of a name is.
const randomLength = 5

var errNoSecret = errors.New("no secrets specified for this user")
