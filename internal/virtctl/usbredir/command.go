// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package usbredir implements the command usbredir, which redirects a local USB device to a guest.
package usbredir

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"regexp"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
)

// device matches vendor:product and bus-device, the formats of usbredirect.
var device = regexp.MustCompile(`^([0-9a-fA-F]{4}:[0-9a-fA-F]{4}|[0-9]+-[0-9]+)$`)

// Command returns the command usbredir.
func Command(c *cli.CLI) *cobra.Command {
	var noLaunch bool
	var address string
	cmd := &cobra.Command{
		Use:   "usbredir (vendor:product)|(bus-device) (VMI)",
		Short: "Redirect an USB device to a virtual machine instance.",
		Long:  "Redirect a local USB device to a guest with the program usbredirect. The VM needs spec.domain.devices.clientPassthrough.",
		Example: c.Examples(`
# Find the device, and redirect it to 'testvmi':
lsusb
virtctl usbredir 0951:1666 testvmi

# Open a local port for a client of your own:
virtctl usbredir --no-launch testvmi`),
		Args: func(_ *cobra.Command, args []string) error {
			if noLaunch {
				return cobra.ExactArgs(1)(nil, args)
			}
			if len(args) != 2 {
				return errors.New("a device and a VMI are needed, such as: usbredir 0951:1666 testvmi")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !noLaunch && !device.MatchString(args[0]) {
				return fmt.Errorf("%q is not a device: it is vendor:product, such as 0951:1666, or bus-device, such as 1-3; lsusb lists both", args[0])
			}
			return run(cmd.Context(), c, args, noLaunch, address)
		},
	}
	cmd.Flags().BoolVar(&noLaunch, "no-launch", false, "Only open the local port, without starting usbredirect.")
	cmd.Flags().StringVar(&address, "address", "127.0.0.1:0", "The local address. By default a free port.")
	return cmd
}

func run(ctx context.Context, c *cli.CLI, args []string, noLaunch bool, address string) error {
	program := ""
	if !noLaunch {
		var err error
		if program, err = exec.LookPath("usbredirect"); err != nil {
			return errors.New("the program usbredirect is not installed (Debian package usbredirect): install it, or use --no-launch")
		}
	}
	api, vmi, err := c.Instance(args[len(args)-1])
	if err != nil {
		return err
	}
	stream, err := api.Stream(ctx, vmi, []string{"usbredir"}, nil)
	if err != nil {
		return fmt.Errorf("can't access VMI %s: %w", vmi.Name, err)
	}
	defer func() { _ = stream.Close() }()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = listener.Close()
		_ = stream.Close()
	})
	defer stop()
	defer func() { _ = listener.Close() }()
	ended := make(chan error, 1)
	if noLaunch {
		if _, err := fmt.Fprintf(c.Out, "User can connect usbredir client at: %s\n", listener.Addr()); err != nil {
			return err
		}
	} else {
		client := exec.CommandContext(ctx, program, "--device", args[0], "--to", listener.Addr().String()) //nolint:gosec // the user's own device
		client.Stdout, client.Stderr = c.ErrOut, c.ErrOut
		go func() {
			err := client.Run()
			_ = listener.Close()
			ended <- err
		}()
	}
	conn, err := listener.Accept()
	if err != nil {
		if noLaunch || ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("usbredirect did not connect: %w", errors.Join(<-ended, err))
	}
	err = stream.Join(conn, conn)
	_ = conn.Close()
	if !noLaunch {
		// usbredirect stops when its connection is closed, and may still print messages.
		<-ended //nolint:errcheck // its error is about the closed connection
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("the redirection ended: %w", err)
	}
	return nil
}
