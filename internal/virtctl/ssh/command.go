// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package ssh implements the commands ssh and scp, which run the local OpenSSH client with virtctl port-forward as its ProxyCommand.
package ssh

import (
	"errors"
	"fmt"
	"os"
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
	knownHosts   string
	localSSH     bool
	localOptions []string
	vsock        bool
	// identitySet and knownHostsSet report whether the user gave the flag. If not, OpenSSH's own default applies.
	identitySet, knownHostsSet bool
}

func (o *options) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&o.username, "username", "l", defaultUsername(), "The user in the guest.")
	flags.StringVarP(&o.identity, "identity-file", "i", "", "A private key. By default OpenSSH uses the SSH agent and the keys in ~/.ssh.")
	flags.StringVar(&o.knownHosts, "known-hosts", "", "The file of known host keys. By default OpenSSH's own; an empty value disables the check of host keys.")
	flags.IntVarP(&o.port, "port", "p", 22, "The guest's port.")
	flags.StringArrayVarP(&o.localOptions, "local-ssh-opts", "t", nil, "An additional option for the local OpenSSH client. Can be repeated.")
	flags.BoolVar(&o.vsock, "vsock", false, "Connect to the instance's VSOCK port.")
	// KubeVirt had this flag up to 1.6, where false chose an SSH client inside virtctl.
	flags.BoolVar(&o.localSSH, "local-ssh", true, "Use the local OpenSSH client.")
	_ = flags.MarkHidden("local-ssh")
}

// complete checks the flags and records which of them the user gave.
func (o *options) complete(c *cli.CLI, cmd *cobra.Command) error {
	if !o.localSSH {
		return fmt.Errorf("--local-ssh=false is not supported: %s has no SSH client of its own. Install OpenSSH and leave out --local-ssh", c.Program)
	}
	if cmd.Flags().Changed("local-ssh") {
		// pflag's MarkDeprecated is not used, because cobra prints its message to the standard output, which belongs to the guest.
		_, _ = fmt.Fprintln(c.ErrOut, "Flag --local-ssh has been deprecated, the local OpenSSH client is always used")
	}
	o.identitySet = cmd.Flags().Changed("identity-file")
	o.knownHostsSet = cmd.Flags().Changed("known-hosts")
	return nil
}

// defaultUsername returns the local user's name, or "" if the environment does not contain it.
func defaultUsername() string {
	for _, variable := range []string{"USER", "USERNAME", "LOGNAME"} {
		if name := os.Getenv(variable); name != "" {
			return name
		}
	}
	return ""
}

// parseTarget parses [user@]type/name[/namespace]. A user in it takes precedence over the flag.
func (o *options) parseTarget(argument, namespace string) (subresources.Object, error) {
	if i := strings.LastIndex(argument, "@"); i >= 0 {
		if i == 0 {
			return subresources.Object{}, errors.New("expected username before '@'")
		}
		o.username, argument = argument[:i], argument[i+1:]
	}
	if argument == "" {
		return subresources.Object{}, errors.New("expected target after '@'")
	}
	// OpenSSH would interpret it as an option.
	if strings.HasPrefix(o.username, "-") {
		return subresources.Object{}, fmt.Errorf("username %q begins with a dash", o.username)
	}
	return portforward.ParseTarget(argument, namespace)
}

// Command returns the command ssh.
func Command(c *cli.CLI) *cobra.Command {
	o := &options{}
	var command string
	cmd := &cobra.Command{
		Use:   "ssh (VM|VMI)",
		Short: "Open a SSH connection to a virtual machine instance.",
		Example: c.Examples(`
# Connect to 'myvm' as user 'jdoe':
virtctl ssh jdoe@vm/myvm

# In another namespace, with a given private key:
virtctl ssh jdoe@vm/myvm/mynamespace --identity-file=~/.ssh/mykey

# Run a command; its exit code is this command's:
virtctl ssh jdoe@vmi/myvmi --command='uname -a'

# With further options of OpenSSH:
virtctl ssh jdoe@vm/myvm --local-ssh-opts='-oStrictHostKeyChecking=no' --local-ssh-opts='-L8080:localhost:80'`),
		Args: c.OneArgument("target"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(c, cmd); err != nil {
				return err
			}
			namespace, err := c.Namespace()
			if err != nil {
				return err
			}
			target, err := o.parseTarget(args[0], namespace)
			if err != nil {
				return err
			}
			arguments := []string{o.host(target)}
			if command != "" {
				arguments = append(arguments, command)
			}
			return o.runOpenSSH(cmd.Context(), c, "ssh", target, arguments)
		},
	}
	o.addTo(cmd)
	cmd.Flags().StringVarP(&command, "command", "c", "", "A command to run in the guest instead of a shell.")
	return cmd
}
