// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package vnc implements the command vnc, which shows a guest's screen in a viewer, at a local port, in a browser or in
// a file.
package vnc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	flags.BoolVar(&o.proxyOnly, "proxy-only", false,
		"Serve the screen at a local port for a viewer of your own, and print the port as JSON.")
	flags.BoolVar(&o.web, "web", false, "Serve a page with the screen and the serial console to a local browser.")
	flags.IntVar(&o.port, "port", 0, "The local port. By default a free one.")
	flags.StringVar(&o.address, "address", "127.0.0.1",
		"The local address of --proxy-only. Every program that can connect to it controls the guest.")
	flags.BoolVar(&o.preserveSession, "preserve-session", false,
		"Fail if another client uses the screen, instead of disconnecting it.")
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
func runViewer(
	ctx context.Context, listener net.Listener, stream *subresources.Stream, start func(context.Context, string) error,
) error {
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
		_, _ = fmt.Fprintln(c.ErrOut,
			"Open this address in a local browser. Anyone who knows it controls the guest. Press Ctrl+C to quit.")
	})
}

// screen is an instance's screen.
type screen struct {
	api      *subresources.Client
	vmi      subresources.Object
	preserve bool
}

func (s *screen) open(ctx context.Context) (*subresources.Stream, error) {
	var parameters url.Values
	if s.preserve {
		parameters = url.Values{"preserveSession": {"true"}}
	}
	stream, err := s.api.Stream(ctx, s.vmi, []string{"vnc"}, parameters)
	if err != nil {
		return nil, fmt.Errorf("can't access VMI %s: %w", s.vmi.Name, err)
	}
	return stream, nil
}

func screenshot(c *cli.CLI) *cobra.Command {
	var file string
	var moveCursor bool
	cmd := &cobra.Command{
		Use:   "screenshot (VMI)",
		Short: "Create a VNC screenshot of a virtual machine instance.",
		Example: c.Examples(`
# Store the screen of 'testvmi' as an image:
virtctl vnc screenshot testvmi --file=screen.png

# Display it:
virtctl vnc screenshot testvmi -f - | display`),
		Args:              c.OneArgument("VMI"),
		ValidArgsFunction: c.CompleteInstances,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, vmi, err := c.Instance(args[0])
			if err != nil {
				return err
			}
			parameters := url.Values{"moveCursor": {fmt.Sprint(moveCursor)}}
			image, err := api.GetRaw(cmd.Context(), vmi, "vnc/screenshot", parameters)
			if err != nil {
				return fmt.Errorf("can't access VMI %s: %w", vmi.Name, err)
			}
			if file == "-" {
				_, err = c.Out.Write(image)
				return err
			}
			return os.WriteFile(file, image, 0o600)
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "",
		"Where to store the screenshot in PNG format; - is the standard output.")
	cmd.Flags().BoolVarP(&moveCursor, "move-cursor", "m", false, "Move the cursor first, which turns on a blanked screen.")
	_ = cmd.MarkFlagRequired("file")
	return cmd
}

// kind is a known viewer.
type kind struct {
	name string
	// programs are its names on the PATH, or patterns of its path on macOS.
	programs []string
	// arguments returns the arguments by which it connects to an address.
	arguments func(address string) []string
}

func plain(address string) []string { return []string{address} }

// kinds are the known viewers in order of preference.
var kinds = []kind{
	{"remote-viewer", []string{"remote-viewer"}, func(address string) []string { return []string{"vnc://" + address} }},
	{"tiger", []string{"vncviewer", "/Applications/TigerVNC Viewer*.app/Contents/MacOS/TigerVNC Viewer"}, plain},
	{"chicken", []string{"/Applications/Chicken.app/Contents/MacOS/Chicken"}, plain},
	{"real", []string{"/Applications/VNC Viewer.app/Contents/MacOS/vncviewer"}, func(address string) []string {
		return []string{address, "-WarnUnencrypted=0", "-Shared=0", "-ShareFiles=0"}
	}},
}

// viewer is the viewer that the user chose, if any.
type viewer struct{ kind, path string }

func (v *viewer) addFlags(flags *pflag.FlagSet) {
	names := make([]string, 0, len(kinds))
	for _, k := range kinds {
		names = append(names, k.name)
	}
	flags.StringVar(&v.kind, "vnc-type", "", "The viewer: "+strings.Join(names,
		", ")+". By default the first that is installed.")
	flags.StringVar(&v.path, "vnc-path", "", "The viewer's program, if it is not on the PATH. Needs --vnc-type.")
}

// find returns a function that runs the viewer with an address until it exits.
func (v *viewer) find() (func(context.Context, string) error, error) {
	if v.path != "" && v.kind == "" {
		return nil, errors.New("--vnc-path needs --vnc-type, which determines the viewer's arguments")
	}
	candidates := kinds
	if v.kind != "" {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == v.kind })
		if i < 0 {
			return nil, fmt.Errorf("--vnc-type %q is not known", v.kind)
		}
		candidates = kinds[i : i+1]
	}
	for _, k := range candidates {
		if program := v.program(k); program != "" {
			return func(ctx context.Context, address string) error { return show(ctx, program, k.arguments(address)) }, nil
		}
	}
	return nil, fmt.Errorf("no VNC viewer was found on this machine (%s)", runtime.GOOS)
}

// program returns the viewer's path, or "" if it is not installed.
func (v *viewer) program(k kind) string {
	if v.path != "" {
		return v.path
	}
	for _, program := range k.programs {
		if !strings.Contains(program, "/") {
			if found, err := exec.LookPath(program); err == nil {
				return found
			}
			continue
		}
		if found, err := filepath.Glob(program); err == nil && len(found) > 0 {
			return found[len(found)-1]
		}
	}
	return ""
}

func show(ctx context.Context, program string, arguments []string) error {
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, program, arguments...) //nolint:gosec // the user's own viewer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = os.Environ()
	if err := cmd.Run(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%s failed: %w\n%s", program, err, strings.TrimSpace(output.String()))
	}
	return nil
}
