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
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
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

// ParseTarget parses type/name[/namespace]. A name without a type is that of an instance, which is also that of its VM.
func ParseTarget(target, namespace string) (subresources.Object, error) {
	parts := strings.Split(target, "/")
	if len(parts) == 1 {
		parts = []string{"vmi", target}
	}
	if len(parts) > 3 {
		return subresources.Object{},
			fmt.Errorf("target %q has more than two '/': it is type/name or type/name/namespace", target)
	}
	resource, err := cli.Resource(parts[0])
	if err != nil {
		return subresources.Object{}, fmt.Errorf("target %q: %w, as in vm/myvm or vmi/myvmi/mynamespace", target, err)
	}
	if parts[1] == "" {
		return subresources.Object{}, fmt.Errorf("target %q: name cannot be empty", target)
	}
	if len(parts) == 3 {
		if namespace = parts[2]; namespace == "" {
			return subresources.Object{}, fmt.Errorf("target %q: namespace cannot be empty", target)
		}
	}
	return subresources.Object{Namespace: namespace, Resource: resource, Name: parts[1]}, nil
}

// Supported protocols.
const (
	tcp = "tcp"
	udp = "udp"
)

// port is a local port and the guest's port to which it is forwarded.
type port struct {
	protocol      string
	local, remote int
}

// parsePorts parses arguments of the form [protocol/]localPort[:targetPort].
func parsePorts(arguments []string) ([]port, error) {
	ports := make([]port, 0, len(arguments))
	for _, argument := range arguments {
		p, err := parsePort(argument)
		if err != nil {
			return nil, fmt.Errorf("port %q: %w; it is [protocol/]localPort[:targetPort], such as 8080, 8080:80 or udp/5353:53",
				argument, err)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

func parsePort(argument string) (port, error) {
	p := port{protocol: tcp}
	if protocol, rest, found := strings.Cut(argument, "/"); found {
		p.protocol, argument = strings.ToLower(protocol), rest
	}
	if p.protocol != tcp && p.protocol != udp {
		return port{}, fmt.Errorf("unknown protocol %q", p.protocol)
	}
	local, target, hasTarget := strings.Cut(argument, ":")
	if local == "" && hasTarget {
		local = "0" // ":80" is any free local port.
	}
	var err error
	if p.local, err = number(local, 0); err != nil {
		return port{}, err
	}
	if !hasTarget {
		target = local
	}
	p.remote, err = number(target, 1)
	return p, err
}

func number(text string, minimum int) (int, error) {
	if text == "" {
		return 0, errors.New("a number is missing")
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < minimum || n > 65535 {
		return 0, fmt.Errorf("%q is not a number between %d and 65535", text, minimum)
	}
	return n, nil
}
