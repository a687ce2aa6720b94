// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-broker is the privileged half of the node agent. It does for virt-handler what needs privileges on the node, a few verbs,
// and has neither a token nor a network.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/vireo-project/vireo/internal/broker"
	"github.com/vireo-project/vireo/internal/broker/device"
	"github.com/vireo-project/vireo/internal/broker/pods"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/component/memorylimit"
)

// checkTimeout bounds the command check.
const checkTimeout = 5 * time.Second

// gcPercent is how much the heap may grow before it is collected, in percent of what is in use.
const gcPercent = 20

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "virt-broker:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	kubeletRoot, podLogsDir, devDir, pluginDir string
	maxDevices, verbosity                      int
}

// run serves, or checks whether another process does.
func run(arguments []string) error {
	check := len(arguments) > 0 && arguments[0] == "check"
	if check {
		arguments = arguments[1:]
	}
	o, fs := &options{}, flag.NewFlagSet("virt-broker", flag.ContinueOnError)
	fs.StringVar(&o.kubeletRoot, "kubelet-root", "/var/lib/kubelet", "root directory of the kubelet on the node")
	fs.StringVar(&o.podLogsDir, "pod-logs-dir", "/var/log/pods", "directory in which the kubelet creates a directory for the logs of each Pod; only names are read")
	fs.StringVar(&o.devDir, "dev-dir", "/host-dev", "path at which the node's /dev is mounted")
	fs.StringVar(&o.pluginDir, "device-plugin-dir", "/var/lib/kubelet/device-plugins", "directory of the kubelet's sockets for device plugins, which is the same for every kubelet root")
	fs.IntVar(&o.maxDevices, "max-devices", 1000, "maximum number of VMIs on the node")
	fs.IntVar(&o.verbosity, "v", 0, "log verbosity")
	if err := fs.Parse(arguments); err != nil {
		return err
	}
	switch {
	case fs.NArg() > 0:
		return fmt.Errorf("unknown argument %q: the only command is check", fs.Arg(0))
	case o.maxDevices < 1:
		return fmt.Errorf("--max-devices is %d: it must be at least 1", o.maxDevices)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if check {
		return ping(ctx, brokerapi.Socket(o.kubeletRoot))
	}
	// Its memory is overhead of every node, and it has little garbage: collect that early.
	debug.SetGCPercent(gcPercent)
	if err := memorylimit.Apply(memorylimit.PureGo); err != nil {
		return err
	}
	return serve(ctx, o)
}

// serve serves the verbs and the device plugins until the context is done. Guests, and connections that were passed, remain.
func serve(ctx context.Context, o *options) error {
	log := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.Level(-o.verbosity)}))
	devices := device.NewManager(device.Options{PluginDir: o.pluginDir, DevDir: o.devDir, Count: o.maxDevices})
	server := broker.New(broker.Options{
		PodsDir: filepath.Join(o.kubeletRoot, "pods"), PodLogsDir: o.podLogsDir,
		PodResourcesDir: filepath.Join(o.kubeletRoot, "pod-resources"), DevDir: o.devDir,
		PublishedDevices: pods.PublishedDevices(o.kubeletRoot), Devices: devices, ClientUID: brokerapi.ClientUID, Log: log,
	})
	defer server.Close()
	listener, err := broker.Listen(brokerapi.Socket(o.kubeletRoot), brokerapi.ClientUID)
	if err != nil {
		return err
	}
	log.Info("Starting virt-broker", "socket", brokerapi.Socket(o.kubeletRoot))
	// If one of them fails, the process ends and is restarted.
	group, ctx := errgroup.WithContext(logr.NewContext(ctx, log))
	group.Go(func() error { return server.Serve(ctx, listener) })
	group.Go(func() error { return devices.Start(ctx) })
	return group.Wait()
}

// ping returns nil if the broker responds at a socket.
func ping(ctx context.Context, socket string) error {
	conn, err := (&net.Dialer{Timeout: checkTimeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	err = errors.Join(conn.SetDeadline(time.Now().Add(checkTimeout)), brokerapi.WriteRequest(conn, &brokerapi.Request{Verb: brokerapi.Ping}))
	if err != nil {
		return err
	}
	response, err := io.ReadAll(io.LimitReader(conn, brokerapi.MaxResponse))
	if err == nil && !bytes.HasSuffix(response, []byte("{}")) {
		err = fmt.Errorf("it responded %.256q", response)
	}
	return err
}
