// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package launcher is PID 1 of a VM's Pod. It starts libvirtd, watches the one domain that the node agent defines
// there, serves DHCP to the guest, copies the guest's console to the container that logs it, shuts the guest down on
// SIGTERM, and exits with the guest's outcome. It is no client of the API server.
package launcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
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

// Run runs the VM's Pod until the guest has ended, and returns the exit code. It writes the outcome to the termination
// log.
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
	// A container runtime that restarts closes the log for a moment. By default a write would then terminate PID 1, and
	// with it the guest. With a handler, the write just fails.
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

// keepState prepares the persistent state for the guest, if the Pod has a claim with it, and writes its changes to the
// disk from then on. A failure does not prevent the start: virt-handler reports state that the guest cannot use.
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

// logConsole copies the guest's console to the container that logs it, if the Pod has one. finish flushes the last
// lines.
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

// NewLogHandler returns a handler that logs JSON lines in the format of the other components. logr's verbosity n is
// slog's level -n.
func NewLogHandler(w io.Writer, level slog.Level) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			switch a.Key {
			case slog.TimeKey:
				return slog.String("ts", a.Value.Time().UTC().Format(time.RFC3339Nano))
			case slog.LevelKey:
				return slog.String("level", levelName(a.Value))
			case "err":
				a.Key = "error"
			}
			return a
		}})
}

func levelName(value slog.Value) string {
	level, ok := value.Any().(slog.Level)
	if ok && level < slog.LevelInfo {
		return "debug"
	}
	return strings.ToLower(value.String())
}

// Options are the launcher's options, from its command line.
type Options struct {
	// Namespace and Name are the VMI's.
	Namespace string
	Name      string
	// UID is the VMI's UID.
	UID string
	// Subdomain is the VMI's subdomain, for the guest's search list; empty if it has none.
	Subdomain string
	// GracePeriod is how long a guest may take to shut down before it is destroyed.
	GracePeriod time.Duration
	// Interfaces are the guest's interfaces that are served by DHCP.
	Interfaces []dhcp.Interface
	// LibvirtLogFilters are libvirtd's log filters. Empty means that it logs warnings and errors.
	LibvirtLogFilters string
	// TerminationLog is the file for the outcome.
	TerminationLog string
}

// Validate returns an error if an option is missing or invalid.
func (o Options) Validate() error {
	switch {
	case o.Name == "":
		return errors.New("--name is missing: name the VirtualMachineInstance")
	case o.Namespace == "":
		return errors.New("--namespace is missing: name the VirtualMachineInstance's namespace")
	case o.GracePeriod < 0:
		return fmt.Errorf("--grace-period-seconds is %d: it must be 0 or more", int(o.GracePeriod.Seconds()))
	}
	return nil
}

// Directories in the Pod's runtime volume. libvirtd in session mode gets its directories from these variables.
var (
	homeDir    = filepath.Join(launcherpod.RuntimeDir, "home")
	xdgRuntime = filepath.Join(launcherpod.RuntimeDir, "run")
	xdgConfig  = filepath.Join(launcherpod.RuntimeDir, "config")
	xdgCache   = filepath.Join(launcherpod.RuntimeDir, "cache")
	tempDir    = filepath.Join(launcherpod.RuntimeDir, "tmp")
)

// Files of the launcher image.
const (
	libvirtdBinary = "/usr/sbin/libvirtd"
	shareDir       = "/usr/share/vireo/libvirt"
	libvirtdConfig = shareDir + "/libvirtd.conf"
	qemuConfig     = shareDir + "/qemu.conf"
	swtpmConfig    = "/usr/share/vireo/swtpm/swtpm_setup.conf"
	resolvConf     = "/etc/resolv.conf"
)

// SetNoNewPrivs ensures that this process and its children never gain privileges, whatever programs they run. A
// container has this setting from its manifest, but for the probe of a node of an earlier release, which is privileged
// and gets this launcher during an update of images only. Call it first: it executes the program again.
func SetNoNewPrivs() error {
	given, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read no_new_privs: %w", err)
	}
	if given == 1 {
		return nil
	}
	// It is an attribute of a thread, which is preserved if the thread executes a program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if err := unix.Exec("/proc/self/exe", os.Args, os.Environ()); err != nil {
		return fmt.Errorf("execute the program again with no_new_privs: %w", err)
	}
	return nil
}
