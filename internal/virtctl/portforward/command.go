// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package portforward implements the command port-forward, which makes ports of a guest available at local ports.
package portforward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// options are the command's flags.
type options struct {
	stdio, vsock, vsockTLS bool
	address                string
}

// Command returns the command port-forward.
func Command(c *cli.CLI) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "port-forward type/name[/namespace] [protocol/]localPort[:targetPort]...",
		Short: "Forward local ports to a virtual machine or virtual machine instance.",
		Long: "Forward local ports to a virtual machine or virtual machine instance.\n\n" +
			"The type is vm, vms, virtualmachine, vmi, and so on. Protocols are tcp (default) and udp. All traffic goes through the\n" +
			"cluster's API server: for much of it, use a Service (" + c.Program + " expose).",
		Example: c.Examples(`
# Forward the local port 8080 to the guest's port 80:
virtctl port-forward vm/myvm 8080:80

# Forward UDP to an instance in another namespace:
virtctl port-forward vmi/myvmi/mynamespace udp/5353:53

# Forward from a free local port, which is printed:
virtctl port-forward vm/myvm :22

# Forward several ports, and accept connections from other machines:
virtctl port-forward vm/myvm 8080:80 8443:443 --address 0.0.0.0

# For OpenSSH:
ssh -o 'ProxyCommand=virtctl port-forward --stdio=true vm/myvm/mynamespace 22' user@myvm`),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return fmt.Errorf("a target and at least one port are needed, such as %s port-forward vm/myvm 8080:80, see: %s --help", c.Program, cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), c, args) },
	}
	cmd.Flags().BoolVar(&o.stdio, "stdio", false, "Connect one port with this command's input and output.")
	cmd.Flags().StringVar(&o.address, "address", "127.0.0.1", "The address that the local ports are opened on.")
	cmd.Flags().BoolVar(&o.vsock, "vsock", false, "Connect to the instance's VSOCK ports.")
	cmd.Flags().BoolVar(&o.vsockTLS, "vsock-tls", true, "Encrypt --vsock with TLS, which the guest must support.")
	return cmd
}

func (o *options) run(ctx context.Context, c *cli.CLI, args []string) error {
	namespace, err := c.Namespace()
	if err != nil {
		return err
	}
	target, err := ParseTarget(args[0], namespace)
	if err != nil {
		return err
	}
	ports, err := parsePorts(args[1:])
	if err != nil {
		return err
	}
	api, err := c.Subresources()
	if err != nil {
		return err
	}
	dial := &Dialer{API: api, Target: target, VSOCK: o.vsock, PlainVSOCK: !o.vsockTLS}
	if o.vsock && slices.ContainsFunc(ports, func(p port) bool { return p.protocol != tcp }) {
		return errors.New("--vsock supports no datagrams: leave out udp/")
	}
	if o.stdio {
		if len(ports) != 1 {
			return errors.New("only one port supported when forwarding to stdout")
		}
		return stdio(ctx, dial, ports[0].protocol, ports[0].remote, c.IOStreams)
	}
	address, err := net.ResolveIPAddr("ip", o.address)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	f := &forwarder{dial: dial, address: address, out: c.Out, errOut: c.ErrOut, wait: pause}
	return f.run(ctx, ports)
}
