// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package ssh has the commands ssh and scp: to a guest through the cluster's API server, with a client of their own or with the
// one on this machine.
package ssh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/portforward"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
)

// options are the flags that ssh and scp share.
type options struct {
	port         int
	username     string
	identity     string
	identityIs   bool // given by the user
	knownHosts   string
	local        bool
	localOptions []string
	vsock        bool
}

// defaultKeys are the private keys that are tried, in OpenSSH's order.
var defaultKeys = []string{"id_ed25519", "id_ecdsa", "id_rsa"}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&o.username, "username", "l", defaultUsername(), "The user in the guest.")
	flags.StringVarP(&o.identity, "identity-file", "i", "", "A private key. By default those of the SSH agent and "+strings.Join(defaultKeys, ", ")+" in ~/.ssh.")
	flags.StringVar(&o.knownHosts, "known-hosts", homeFile("kubevirt_known_hosts"), "The file of known host keys. Empty does not check them.")
	flags.IntVarP(&o.port, "port", "p", 22, "The guest's port.")
	flags.BoolVar(&o.local, "local-ssh", false, "Use this machine's OpenSSH, with this command as its ProxyCommand.")
	flags.StringArrayVarP(&o.localOptions, "local-ssh-opts", "t", nil, "Further options for this machine's OpenSSH, which is then used.")
	flags.BoolVar(&o.vsock, "vsock", false, "Connect to the instance's VSOCK port.")
}

// complete takes what the flags say together.
func (o *options) complete(cmd *cobra.Command) {
	o.identityIs = cmd.Flags().Changed("identity-file")
	o.local = o.local || len(o.localOptions) > 0
}

func homeFile(name string) string {
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".ssh", name)
}

// defaultUsername is who runs this, where the environment says it.
func defaultUsername() string {
	for _, variable := range []string{"USER", "USERNAME", "LOGNAME"} {
		if name := os.Getenv(variable); name != "" {
			return name
		}
	}
	return ""
}

// parseTarget reads [user@]type/name[/namespace]. A user in it wins over the flag.
func (o *options) parseTarget(argument, namespace string) (subresources.Object, error) {
	if at := strings.LastIndex(argument, "@"); at >= 0 {
		if at == 0 {
			return subresources.Object{}, errors.New("expected username before '@'")
		}
		o.username, argument = argument[:at], argument[at+1:]
	}
	if argument == "" {
		return subresources.Object{}, errors.New("expected target after '@'")
	}
	if strings.HasPrefix(o.username, "-") {
		return subresources.Object{}, fmt.Errorf("username %q begins with a dash", o.username)
	}
	return portforward.ParseTarget(argument, namespace)
}

// shortKind is a target's kind in host names, as KubeVirt has them.
func shortKind(target subresources.Object) string { return strings.ToLower(target.Kind()) }

// hostName is what a target is called in known_hosts: KubeVirt's name for it.
func (o *options) hostName(target subresources.Object) string {
	return fmt.Sprintf("%s/%s.%s:%d", shortKind(target), target.Name, target.Namespace, o.port)
}

// Command makes the command ssh.
func Command(c *cli.CLI) *cobra.Command {
	o := &options{}
	var command string
	cmd := &cobra.Command{
		Use:   "ssh (VM|VMI)",
		Short: "Open a SSH connection to a virtual machine instance.",
		Example: c.Examples(`
# Connect to 'myvm' as user 'jdoe':
virtctl ssh jdoe@vm/myvm

# In another namespace, with a key of one's own:
virtctl ssh jdoe@vm/myvm/mynamespace --identity-file=~/.ssh/mykey

# Run a command; its exit code is this command's:
virtctl ssh jdoe@vmi/myvmi --command='uname -a'

# With this machine's OpenSSH and its options:
virtctl ssh jdoe@vm/myvm --local-ssh-opts='-oStrictHostKeyChecking=no' --local-ssh-opts='-L8080:localhost:80'`),
		Args: c.OneArgument("target"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.complete(cmd)
			namespace, err := c.Namespace()
			if err != nil {
				return err
			}
			target, err := o.parseTarget(args[0], namespace)
			if err != nil {
				return err
			}
			if o.local {
				arguments := []string{o.localHost(target)}
				if command != "" {
					arguments = append(arguments, command)
				}
				return o.runLocal(cmd.Context(), c, "ssh", target, arguments)
			}
			client, err := o.connect(cmd.Context(), c, target)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }()
			return session(client, c.IOStreams, command)
		},
	}
	o.addTo(cmd)
	cmd.Flags().StringVarP(&command, "command", "c", "", "A command to run in the guest instead of a shell.")
	return cmd
}
