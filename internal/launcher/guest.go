// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/reaper"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

// guest is what is known of the domain. Events and states are fed in; nothing here asks libvirt.
type guest struct {
	// started says that QEMU ran.
	started bool
	// ended says that it ran and is gone.
	ended bool
	// end is the detail of the stop event.
	end int32
	// panicked says that the guest's kernel panicked.
	panicked bool
	// signaled says that QEMU said that it ends because of a signal.
	signaled bool
	// stopRequested says that the launcher was told to end.
	stopRequested bool
	// destroyed says that the launcher destroyed the domain because the grace period was over.
	destroyed bool
}

// observe takes a lifecycle event of the domain.
func (g *guest) observe(event libvirtrpc.Event) {
	switch event.Type {
	case libvirtrpc.EventStarted:
		g.started = true
	case libvirtrpc.EventCrashed:
		g.panicked = g.panicked || event.Detail == libvirtrpc.CrashedPanicked
	case libvirtrpc.EventShutdown:
		g.signaled = event.Detail == libvirtrpc.ShutdownHost
	case libvirtrpc.EventStopped:
		// A start that failed before QEMU ran is the agent's to report and to repeat.
		if g.started {
			g.ended, g.end = true, event.Detail
		}
	default: // the others change nothing here
	}
}

// adopt takes the domain's state as it was found when connecting, when events may have been missed.
func (g *guest) adopt(state libvirtrpc.State, reason int32) {
	if state.Active() {
		g.started = true
		return
	}
	ends := map[libvirtrpc.ShutoffReason]int32{
		libvirtrpc.ShutoffShutdown:  libvirtrpc.StoppedShutdown,
		libvirtrpc.ShutoffDestroyed: libvirtrpc.StoppedDestroyed,
		libvirtrpc.ShutoffCrashed:   libvirtrpc.StoppedCrashed,
		libvirtrpc.ShutoffMigrated:  libvirtrpc.StoppedMigrated,
		libvirtrpc.ShutoffSaved:     libvirtrpc.StoppedSaved,
	}
	switch end, ran := ends[libvirtrpc.ShutoffReason(reason)]; {
	case state == libvirtrpc.StateCrashed:
		g.started, g.ended, g.end = true, true, libvirtrpc.StoppedCrashed
	case state == libvirtrpc.StateShutoff && ran:
		g.started, g.ended, g.end = true, true, end
	case state == libvirtrpc.StateShutoff && g.started:
		g.ended, g.end = true, libvirtrpc.StoppedFailed
	}
}

// vanish takes that the domain is not defined. If it ran, it ended and was undefined while nobody watched.
func (g *guest) vanish() {
	if g.started {
		g.ended, g.end = true, libvirtrpc.StoppedFailed
	}
}

// outcome says how the guest ended, and with which code the launcher exits. qemu is how QEMU's process ended,
// if that is known.
func (g *guest) outcome(qemu *unix.WaitStatus) (launcherpod.Outcome, int) {
	outcome, code := g.howItEnded(qemu)
	outcome.Stopped = g.stopRequested
	return outcome, code
}

func (g *guest) howItEnded(qemu *unix.WaitStatus) (launcherpod.Outcome, int) {
	switch {
	case !g.started:
		return success(launcherpod.OutcomeNotStarted, "the Pod was stopped before its guest was started")
	case g.panicked:
		return failure(launcherpod.OutcomePanicked, "the guest's kernel panicked; see the log of the Pod's container guest-console-log")
	case g.destroyed:
		return success(launcherpod.OutcomeDestroyed, "the guest did not shut down within its grace period and was destroyed")
	case g.end == libvirtrpc.StoppedMigrated:
		return success(launcherpod.OutcomeMigrated, "the guest moved to another Pod")
	case g.end == libvirtrpc.StoppedShutdown && (!g.signaled || g.stopRequested):
		return success(launcherpod.OutcomeShutdown, "the guest powered off")
	case g.end == libvirtrpc.StoppedDestroyed && g.stopRequested:
		return success(launcherpod.OutcomeDestroyed, "the guest was destroyed while it was asked to shut down")
	case g.end == libvirtrpc.StoppedDestroyed || g.end == libvirtrpc.StoppedShutdown:
		return failure(launcherpod.OutcomeKilled, "someone destroyed the guest without a request to stop it")
	default:
		return failure(launcherpod.OutcomeCrashed, "QEMU ended without being asked to: "+describe(qemu))
	}
}

func describe(qemu *unix.WaitStatus) string {
	if qemu == nil {
		return "libvirtd's lines in the Pod's log may say why"
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
			fmt.Sprintf("libvirtd did not answer within %s; its lines in the Pod's log may say why", readyTimeout))
	}
	return failure(launcherpod.OutcomeLibvirtFailed, "libvirtd ended and its guest with it: "+reaper.Describe(*status))
}
