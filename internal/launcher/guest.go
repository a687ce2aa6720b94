// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/reaper"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/libvirtwire"
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

// notDefined processes that the domain is not defined. If it was started, it ended and was undefined while there was no connection.
func (g *guest) notDefined() {
	if g.started {
		g.ended, g.end = true, libvirtwire.StoppedFailed
	}
}

// outcome returns how the guest ended, and the launcher's exit code. qemu is the exit status of QEMU's process, if it is known.
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
		return failure(launcherpod.OutcomePanicked, "the guest's kernel panicked; see the log of the Pod's container guest-console-log")
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
			fmt.Sprintf("libvirtd did not respond within %s; its messages in the Pod's log may contain the reason", readyTimeout))
	}
	return failure(launcherpod.OutcomeLibvirtFailed, "libvirtd exited, and the guest with it: "+reaper.Describe(*status))
}
