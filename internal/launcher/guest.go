// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/reaper"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// guest is the state of the domain. It is computed from events and states; guest does not call libvirt.
type guest struct {
	// started means that QEMU has run.
	started bool
	// ended means that QEMU has run and exited.
	ended bool
	// end is the detail of the stop event.
	end int32
	// panicked means that the guest's kernel panicked.
	panicked bool
	// signaled means that QEMU reported that it exits because of a signal.
	signaled bool
	// stopRequested means that the launcher was requested to stop.
	stopRequested bool
	// destroyed means that the launcher destroyed the domain because the grace period was over.
	destroyed bool
}

// observe processes a lifecycle event of the domain.
func (g *guest) observe(event libvirtwire.Event) {
	switch event.Type {
	case libvirtwire.EventStarted:
		g.started = true
	case libvirtwire.EventCrashed:
		g.panicked = g.panicked || event.Detail == libvirtwire.CrashedPanicked
	case libvirtwire.EventShutdown:
		g.signaled = event.Detail == libvirtwire.ShutdownHost
	case libvirtwire.EventStopped:
		// The agent reports and repeats a start that failed before QEMU ran.
		if g.started {
			g.ended, g.end = true, event.Detail
		}
	default: // The others are of no interest.
	}
}

// setState processes the domain's state at the time of connecting: events before that were missed.
func (g *guest) setState(state libvirtwire.State, reason int32) {
	if state.Active() {
		g.started = true
		return
	}
	ends := map[libvirtwire.ShutoffReason]int32{
		libvirtwire.ShutoffShutdown:  libvirtwire.StoppedShutdown,
		libvirtwire.ShutoffDestroyed: libvirtwire.StoppedDestroyed,
		libvirtwire.ShutoffCrashed:   libvirtwire.StoppedCrashed,
		libvirtwire.ShutoffMigrated:  libvirtwire.StoppedMigrated,
		libvirtwire.ShutoffSaved:     libvirtwire.StoppedSaved,
	}
	switch end, ran := ends[libvirtwire.ShutoffReason(reason)]; {
	case state == libvirtwire.StateCrashed:
		g.started, g.ended, g.end = true, true, libvirtwire.StoppedCrashed
	case state == libvirtwire.StateShutoff && ran:
		g.started, g.ended, g.end = true, true, end
	case state == libvirtwire.StateShutoff && g.started:
		g.ended, g.end = true, libvirtwire.StoppedFailed
	}
}

// notDefined processes that the domain is not defined. If it was started, it ended and was undefined while there was no
// connection.
func (g *guest) notDefined() {
	if g.started {
		g.ended, g.end = true, libvirtwire.StoppedFailed
	}
}

// outcome returns how the guest ended, and the launcher's exit code. qemu is the exit status of QEMU's process, if it
// is known.
func (g *guest) outcome(qemu *unix.WaitStatus) (launcherpod.Outcome, int) {
	outcome, code := g.describeEnd(qemu)
	outcome.Stopped = g.stopRequested
	return outcome, code
}

func (g *guest) describeEnd(qemu *unix.WaitStatus) (launcherpod.Outcome, int) {
	switch {
	case !g.started:
		return success(launcherpod.OutcomeNotStarted, "the Pod was stopped before its guest was started")
	case g.panicked:
		return failure(launcherpod.OutcomePanicked,
			"the guest's kernel panicked; see the log of the Pod's container guest-console-log")
	case g.destroyed:
		return success(launcherpod.OutcomeDestroyed, "the guest did not shut down within its grace period and was destroyed")
	case g.end == libvirtwire.StoppedMigrated:
		return success(launcherpod.OutcomeMigrated, "the guest moved to another Pod")
	case g.end == libvirtwire.StoppedShutdown && (!g.signaled || g.stopRequested):
		return success(launcherpod.OutcomeShutdown, "the guest powered off")
	case g.end == libvirtwire.StoppedDestroyed && g.stopRequested:
		return success(launcherpod.OutcomeDestroyed, "the guest was destroyed during its shutdown")
	case g.end == libvirtwire.StoppedDestroyed || g.end == libvirtwire.StoppedShutdown:
		return failure(launcherpod.OutcomeKilled, "the guest was destroyed without a request to stop it")
	default:
		return failure(launcherpod.OutcomeCrashed, "QEMU exited unexpectedly: "+describe(qemu))
	}
}

func describe(qemu *unix.WaitStatus) string {
	if qemu == nil {
		return "libvirtd's messages in the Pod's log may contain the reason"
	}
	text := reaper.Describe(*qemu)
	if qemu.Signaled() && qemu.Signal() == unix.SIGKILL {
		text += "; the kernel does that when the Pod's memory is used up"
	}
	return text
}

func success(reason, message string) (launcherpod.Outcome, int) {
	return launcherpod.Outcome{Reason: reason, Message: message}, 0
}

func failure(reason, message string) (launcherpod.Outcome, int) {
	return launcherpod.Outcome{Reason: reason, Message: message}, 1
}

func libvirtFailed(status *unix.WaitStatus) (launcherpod.Outcome, int) {
	if status == nil {
		return failure(launcherpod.OutcomeLibvirtFailed,
			fmt.Sprintf("libvirtd did not respond within %s; its messages in the Pod's log may contain the reason",
				readyTimeout))
	}
	return failure(launcherpod.OutcomeLibvirtFailed, "libvirtd exited, and the guest with it: "+reaper.Describe(*status))
}

// Await waits for a guest that migrates to this Pod.
type Await struct {
	// Domain is the name of the guest's domain.
	Domain string
	// Timeout is how long to wait.
	Timeout time.Duration
}

// domainWatcher is the part of libvirtwire.Client that Await needs.
type domainWatcher interface {
	SubscribeLifecycle(ctx context.Context) error
	Lookup(ctx context.Context, name string) (libvirtwire.Domain, error)
	State(ctx context.Context, domain libvirtwire.Domain) (libvirtwire.State, int32, error)
	Events() <-chan libvirtwire.Event
}

// Run returns when the Pod has the guest, or with an error after the timeout.
func (a Await) Run(ctx context.Context) error {
	if a.Domain == "" || a.Timeout <= 0 {
		return errors.New("the command needs --domain, and a --timeout-seconds of 1 or more")
	}
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	client, err := libvirtwire.Dial(ctx, launcherpod.LibvirtSocket)
	if err != nil {
		return fmt.Errorf("connect to libvirtd: %w", err)
	}
	defer client.Close()
	return a.runWith(ctx, client)
}

func (a Await) runWith(ctx context.Context, libvirtd domainWatcher) error {
	// First: a change after the state was read causes an event.
	if err := libvirtd.SubscribeLifecycle(ctx); err != nil {
		return fmt.Errorf("subscribe to events of the guest: %w", err)
	}
	for {
		here, err := a.isHere(ctx, libvirtd)
		if here || err != nil {
			return err
		}
		select {
		case _, open := <-libvirtd.Events():
			if !open {
				return errors.New("the connection to libvirtd has ended")
			}
		case <-ctx.Done():
			return fmt.Errorf("the guest is not in this Pod after %s", a.Timeout)
		}
	}
}

// isHere reports whether the Pod has the guest. While a migration transfers it, its QEMU runs here and libvirt reports
// it as paused.
func (a Await) isHere(ctx context.Context, libvirtd domainWatcher) (bool, error) {
	domain, err := libvirtd.Lookup(ctx, a.Domain)
	var state libvirtwire.State
	var reason int32
	if err == nil {
		state, reason, err = libvirtd.State(ctx, domain)
	}
	var refused *libvirtwire.Error
	switch {
	case errors.As(err, &refused) && refused.Code == libvirtwire.CodeNoDomain:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read the state of the guest: %w", err)
	}
	switch state {
	case libvirtwire.StateRunning, libvirtwire.StateBlocked, libvirtwire.StatePMSuspended:
		return true, nil
	case libvirtwire.StatePaused:
		switch libvirtwire.PausedReason(reason) {
		case libvirtwire.PausedMigration, libvirtwire.PausedStartingUp, libvirtwire.PausedPostcopy,
			libvirtwire.PausedShuttingDown:
			return false, nil
		default:
			// A user has paused it, or it has stopped by itself.
			return true, nil
		}
	default:
		return false, nil
	}
}

// prepareState creates the directories for the VM's persistent state, and installs the configuration of swtpm_setup,
// which libvirt runs for a new TPM. It contains the location of the authority that signs the TPM's certificates;
// without it swtpm_setup creates another one.
func prepareState(claim, authority string) error {
	if err := copyFile(swtpmConfig, filepath.Join(xdgConfig, filepath.Base(swtpmConfig))); err != nil {
		return fmt.Errorf("configure the TPM's setup: %w", err)
	}
	if err := makeStateDirs(claim, authority); err != nil {
		return fmt.Errorf("create the directories for the guest's persistent state: %w", err)
	}
	return nil
}

// makeStateDirs creates the directories in the claim, if the Pod has one: libvirt only creates the innermost ones. The
// claim has the authority too, so that a new TPM is signed by the same one.
func makeStateDirs(claim, authority string) error {
	_, err := os.Stat(claim)
	if errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(authority, 0o700)
	}
	if err != nil {
		return err
	}
	for _, dir := range []string{launcherpod.NVRAMState, launcherpod.TPMState, launcherpod.AuthorityState} {
		if err := os.MkdirAll(filepath.Join(claim, dir), 0o700); err != nil {
			return err
		}
	}
	return os.Symlink(filepath.Join(claim, launcherpod.AuthorityState), authority)
}

// sharedDirs matches the directories of which libvirt's configuration says that another Pod can have the same files, so
// that a guest may migrate. A TPM that is migrated uses the state that is there, and libvirt creates none.
var sharedDirs = regexp.MustCompile(`(?m)^shared_filesystems = \[ (.*) \]$`)

// configureQEMU installs libvirt's configuration of QEMU for a Pod: without the directories that the Pod does not have,
// and without those that are its own. libvirt 11.3 ignores all directories after one that does not exist.
func configureQEMU(from, to string, own ...string) error {
	content, err := os.ReadFile(from) //nolint:gosec // constant paths
	if err != nil {
		return err
	}
	text := string(content)
	found := sharedDirs.FindStringSubmatch(text)
	if found == nil {
		return fmt.Errorf("%s has no line with shared_filesystems", from)
	}
	var dirs []string
	for _, quoted := range strings.Split(found[1], ", ") {
		dir := strings.Trim(quoted, `"`)
		if slices.Contains(own, dir) {
			continue
		}
		switch _, err := os.Stat(dir); { //nolint:gosec // from the image's configuration
		case err == nil:
			dirs = append(dirs, quoted)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	text = strings.Replace(text, found[1], strings.Join(dirs, ", "), 1)
	return os.WriteFile(to, []byte(text), 0o600) //nolint:gosec // constant paths
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from) //nolint:gosec // constant paths
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600) //nolint:gosec // constant paths
}
