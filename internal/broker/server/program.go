// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package server

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"github.com/vireo-project/vireo/internal/component/memorylimit"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// gcPercent is how much the heap may grow before it is collected, in percent of what is in use.
const gcPercent = 20

// checkTimeout bounds the command check. The probes wait longer, and show its error.
const checkTimeout = 5 * time.Second

// Program is what differs between the programs.
type Program struct {
	// Name is its name.
	Name brokerapi.Program
	// Flags defines flags of its own. It may be nil.
	Flags func(*flag.FlagSet)
	// Start returns its verbs, and what it does beside them until the context is done; if that fails, the process ends
	// and is restarted. It may be nil.
	Start func(Settings) (verbs Verbs, beside func(context.Context) error, err error)
}

// Settings are the flags that the programs have in common, and the log.
type Settings struct {
	// KubeletRoot is the root directory of the kubelet on the node.
	KubeletRoot string
	// Log is the log.
	Log logr.Logger
}

// Main runs a program: it serves the verbs, or checks with the command check whether another process does.
func Main(p Program) {
	if err := p.run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		os.Exit(1)
	}
}

func (p Program) run(arguments []string) error {
	check := len(arguments) > 0 && arguments[0] == "check"
	if check {
		arguments = arguments[1:]
	}
	fs, settings := flag.NewFlagSet(string(p.Name), flag.ContinueOnError), Settings{}
	fs.StringVar(&settings.KubeletRoot, "kubelet-root", "/var/lib/kubelet", "root directory of the kubelet on the node")
	if p.Flags != nil {
		p.Flags(fs)
	}
	if err := fs.Parse(arguments); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unknown argument %q: the only command is check", fs.Arg(0))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	sockets := brokerapi.SocketDir(settings.KubeletRoot)
	if check {
		ctx, cancel := context.WithTimeout(ctx, checkTimeout)
		defer cancel()
		return Call(ctx, p.Name, sockets, &brokerapi.Request{Verb: brokerapi.Ping}, nil)
	}
	// Its memory is overhead of every node, and it has little garbage: collect that early.
	debug.SetGCPercent(gcPercent)
	if err := memorylimit.Apply(memorylimit.PureGo); err != nil {
		return err
	}
	settings.Log = logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, nil))
	return p.serve(logr.NewContext(ctx, settings.Log), p.Name.Socket(sockets), settings)
}

// serve serves the verbs until the context is done. Guests, and connections that were passed, remain.
func (p Program) serve(ctx context.Context, socket string, settings Settings) error {
	verbs, beside, err := p.Start(settings)
	if err != nil {
		return err
	}
	served := New(Options{Program: p.Name, Verbs: verbs, ClientUID: brokerapi.ClientUID, Log: settings.Log})
	defer served.Close()
	listener, err := Listen(socket, brokerapi.ClientUID)
	if err != nil {
		return err
	}
	settings.Log.Info("Starting "+string(p.Name), "socket", socket)
	// If one of them fails, the process ends and is restarted.
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return served.Serve(ctx, listener) })
	if beside != nil {
		group.Go(func() error { return beside(ctx) })
	}
	return group.Wait()
}
