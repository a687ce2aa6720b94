// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vnc implements the command vnc, which shows a guest's screen in a viewer, at a local port, in a browser or in a file.
package vnc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/vireo-project/vireo/internal/virtctl/cli"
	"github.com/vireo-project/vireo/internal/virtctl/subresources"
	"github.com/vireo-project/vireo/internal/virtctl/vnc/web"
)

// connectTimeout is how long the viewer may take to connect.
const connectTimeout = 60 * time.Second

// options are the command's flags.
type options struct {
	proxyOnly, web  bool
	port            int
	address         string
	viewer          viewer
	preserveSession bool
}

// Command returns the command vnc.
func Command(c *cli.CLI) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "vnc (VMI)",
		Short: "Open a vnc connection to a virtual machine instance.",
		Long: "Open the screen of a virtual machine instance in remote-viewer or vncviewer, or with --web in a browser, which also shows\n" +
			"its serial console. A screen has one client: a new client disconnects the former one.",
		Example: c.Examples(`
# Open the screen of 'testvmi' in a local viewer:
virtctl vnc testvmi

# Open it in a browser, with the serial console:
virtctl vnc testvmi --web

# Serve it at a local port, for a viewer of your own:
virtctl vnc testvmi --proxy-only --port=5901

# Store it in a file:
virtctl vnc screenshot testvmi --file=screen.png`),
		Args:              c.OneArgument("VMI"),
		ValidArgsFunction: c.CompleteInstances,
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), c, args[0]) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.proxyOnly, "proxy-only", false, "Serve the screen at a local port for a viewer of your own, and print the port as JSON.")
	flags.BoolVar(&o.web, "web", false, "Serve a page with the screen and the serial console to a local browser.")
	flags.IntVar(&o.port, "port", 0, "The local port. By default a free one.")
	flags.StringVar(&o.address, "address", "127.0.0.1", "The local address of --proxy-only. Every program that can connect to it controls the guest.")
	flags.BoolVar(&o.preserveSession, "preserve-session", false, "Fail if another client uses the screen, instead of disconnecting it.")
	o.viewer.addFlags(flags)
	cmd.MarkFlagsMutuallyExclusive("proxy-only", "web")
	cmd.MarkFlagsMutuallyExclusive("address", "web")
	cmd.AddCommand(screenshot(c))
	return cmd
}

func (o *options) run(ctx context.Context, c *cli.CLI, argument string) error {
	api, vmi, err := c.Instance(argument)
	if err != nil {
		return err
	}
	s := &screen{api: api, vmi: vmi, preserve: o.preserveSession}
	if o.web {
		return o.serveWeb(ctx, c, s)
	}
	var start func(ctx context.Context, address string) error
	if !o.proxyOnly {
		if start, err = o.viewer.find(); err != nil {
			return fmt.Errorf("%w\nInstall one, or use --web for a browser, or --proxy-only for a viewer of your own", err)
		}
		o.address = "127.0.0.1"
	}
	stream, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(o.address, strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("the local port cannot be opened: %w", err)
	}
	defer func() { _ = listener.Close() }()
	if o.proxyOnly {
		announce := map[string]int{"port": listener.Addr().(*net.TCPAddr).Port}
		if err := json.NewEncoder(c.Out).Encode(announce); err != nil {
			return err
		}
		return serveOne(ctx, listener, stream)
	}
	return runViewer(ctx, listener, stream, start)
}

// runViewer starts a viewer and serves it until it exits.
func runViewer(ctx context.Context, listener net.Listener, stream *subresources.Stream, start func(context.Context, string) error) error {
	if err := listener.(*net.TCPListener).SetDeadline(time.Now().Add(connectTimeout)); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served, exited := make(chan error, 1), make(chan error, 1)
	go func() { served <- serveOne(ctx, listener, stream) }()
	go func() { exited <- start(ctx, listener.Addr().String()) }()
	select {
	case err := <-exited:
		return err
	case err := <-served:
		if err != nil {
			return err
		}
		return <-exited
	}
}

// serveOne connects the listener's first client with the stream until one of them closes.
func serveOne(ctx context.Context, listener net.Listener, stream *subresources.Stream) error {
	stop := context.AfterFunc(ctx, func() {
		_ = listener.Close()
		_ = stream.Close()
	})
	defer stop()
	conn, err := listener.Accept()
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("no viewer connected: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := stream.Join(conn, conn); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("the connection to the screen ended: %w", err)
	}
	return nil
}

func (o *options) serveWeb(ctx context.Context, c *cli.CLI, s *screen) error {
	assets, err := web.Assets()
	if err != nil {
		return err
	}
	server := &web.Server{
		Title:  fmt.Sprintf("%s/%s", s.vmi.Namespace, s.vmi.Name),
		Assets: assets,
		Screen: s.open,
		Console: func(ctx context.Context) (*subresources.Stream, error) {
			return s.api.Stream(ctx, s.vmi, []string{"console"}, nil)
		},
	}
	return server.Run(ctx, o.port, func(url string) {
		_, _ = fmt.Fprintf(c.Out, "%s\n", url)
		_, _ = fmt.Fprintln(c.ErrOut, "Open this address in a local browser. Anyone who knows it controls the guest. Press Ctrl+C to quit.")
	})
}
