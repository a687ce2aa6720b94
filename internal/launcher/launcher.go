// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/console"
	"github.com/vireo-project/vireo/internal/launcher/dhcp"
	"github.com/vireo-project/vireo/internal/launcher/podnet"
	"github.com/vireo-project/vireo/internal/launcher/reaper"
	"github.com/vireo-project/vireo/internal/launcher/tail"
	"github.com/vireo-project/vireo/internal/launcher/vmstate"
	"github.com/vireo-project/vireo/internal/launcherpod"
)

const (
	// exitDelay is how long libvirtd runs after the guest's end, so that the agent can read why it ended.
	exitDelay = 300 * time.Millisecond
	// stopTimeout is how long libvirtd may take to stop.
	stopTimeout = time.Second
)

// Run runs the VM's Pod until the guest has ended, and returns the exit code. It writes the outcome to the termination log.
func Run(ctx context.Context, options Options) int {
	log := logr.FromContextOrDiscard(ctx)
	outcome, code := run(ctx, options)
	log.Info("The VM's Pod ends", "reason", outcome.Reason, "detail", outcome.Message, "exitCode", code)
	if err := writeOutcome(options.TerminationLog, outcome); err != nil {
		log.Error(err, "Cannot write the outcome")
	}
	return code
}

func run(ctx context.Context, options Options) (launcherpod.Outcome, int) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log := logr.FromContextOrDiscard(ctx)

	// The signals come first: a Pod may be deleted at any moment, and PID 1 has no default action for SIGTERM.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, unix.SIGTERM, unix.SIGINT)
	defer signal.Stop(stop)
	// A container runtime that restarts closes the log for a moment. By default a write would then terminate PID 1, and with it the
	// guest. With a handler, the write just fails.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)

	// The snapshot is taken before libvirtd's socket exists: the agent changes the network once it finds the socket.
	network, err := podnet.TakeSnapshot(resolvConf)
	if err != nil {
		return internal(fmt.Errorf("record the Pod's network: %w", err))
	}
	network.DNS = network.DNS.WithSubdomain(options.Subdomain)
	children := reaper.New()
	go children.Run(ctx)
	if err := prepare(log, launcherpod.TrackedDisksDir); err != nil {
		return internal(err)
	}
	keepState(ctx, options)
	finishConsole, err := logConsole(ctx)
	if err != nil {
		return internal(err)
	}
	libvirtd, err := startLibvirtd(log, children, options.LibvirtLogFilters)
	if err != nil {
		return internal(err)
	}
	go serveDHCP(ctx, options, network)

	s := newSupervisor(options, children, libvirtd.Child, stop)
	outcome, code := s.follow(ctx)
	stopLibvirtd(log, libvirtd)
	finishConsole()
	return outcome, code
}

// keepState prepares the persistent state for the guest, if the Pod has a claim with it, and writes its changes to the disk from then on.
// A failure does not prevent the start: virt-handler reports state that the guest cannot use.
func keepState(ctx context.Context, options Options) {
	const claim = launcherpod.StateDir
	log := logr.FromContextOrDiscard(ctx)
	if _, err := os.Stat(claim); errors.Is(err, fs.ErrNotExist) {
		return
	}
	adopted, err := vmstate.Adopt(claim, options.Name, os.Getenv(launcherpod.FirmwareUUIDEnv))
	if err != nil {
		log.Error(err, "Cannot use persistent state with another name")
	}
	for _, name := range adopted {
		log.Info("The guest gets the persistent state that has the name of another guest", "file", name)
	}
	empty, err := vmstate.RemoveTornAuthority(claim)
	if err != nil {
		log.Error(err, "Cannot repair the authority of the TPM's certificates")
	}
	if len(empty) > 0 {
		log.Info("The authority of the TPM's certificates was damaged and is created again", "emptyFiles", empty)
	}
	keeper, err := vmstate.NewKeeper(claim)
	if err != nil {
		log.Error(err, "Changes of the persistent state reach the disk later")
		return
	}
	go keeper.Run(ctx, claim)
}

// logConsole copies the guest's console to the container that logs it, if the Pod has one. finish flushes the last lines.
func logConsole(ctx context.Context) (finish func(), err error) {
	if _, err := os.Stat(launcherpod.ConsoleLogDir); errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	fifo, err := console.Open(launcherpod.ConsoleFIFO)
	if err != nil {
		return nil, err
	}
	presence, err := tail.Announce(launcherpod.ConsoleLogFIFO)
	if err != nil {
		_ = fifo.Close()
		return nil, fmt.Errorf("announce the console's log: %w", err)
	}
	// Opening does not block without a reader: the pipe is opened for reading, too.
	out, err := console.Open(launcherpod.ConsoleLogFIFO)
	if err != nil {
		_ = fifo.Close()
		presence.Close()
		return nil, err
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		if err := console.Copy(ctx, out, fifo, console.NewLimiter()); err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "The guest's console no longer reaches the log")
		}
	}()
	return func() {
		_ = fifo.Close()
		select {
		case <-copied: // The last lines are written.
		case <-time.After(stopTimeout):
		}
		_ = out.Close()
		presence.Close()
	}, nil
}

func serveDHCP(ctx context.Context, options Options, network *podnet.Snapshot) {
	log := logr.FromContextOrDiscard(ctx)
	if err := dhcp.Serve(ctx, options.Interfaces, network); err != nil && ctx.Err() == nil {
		// Not fatal: the guest may have a static address.
		log.Error(err, "DHCP for the guest has stopped")
	}
}

func internal(err error) (launcherpod.Outcome, int) {
	return failure(launcherpod.OutcomeInternal, "virt-launcher could not do its work: "+err.Error())
}

// WriteFailure writes the outcome of a launcher that cannot start because of its command line.
func WriteFailure(terminationLog string, err error) error {
	outcome, _ := internal(err)
	return writeOutcome(terminationLog, outcome)
}

// stopLibvirtd stops libvirtd with SIGTERM, and with SIGKILL after a timeout. Remaining processes end with PID 1.
func stopLibvirtd(log logr.Logger, libvirtd *daemon) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := libvirtd.Signal(sig); err != nil {
			log.Error(err, "Cannot signal libvirtd", "signal", sig.String())
		}
		select {
		case <-libvirtd.Done():
			select {
			case <-libvirtd.relayed: // The end of its log is written.
			case <-time.After(stopTimeout):
			}
			return
		case <-time.After(stopTimeout):
		}
	}
}

// writeOutcome writes the outcome as the container's termination message, one line of JSON.
func writeOutcome(file string, outcome launcherpod.Outcome) error {
	line, err := json.Marshal(outcome)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(line, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the outcome %s: %w", outcome.Reason, err)
	}
	return nil
}
