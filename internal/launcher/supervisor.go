// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/reaper"
	"github.com/vireo-project/vireo/internal/launcherpod"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

const (
	// shutdownInterval is the interval of shutdown requests: a guest that boots ignores the first ones. Source: KubeVirt.
	shutdownInterval = 5 * time.Second
	// startWait is how long the launcher waits for a start that may be in progress when it is requested to stop.
	startWait = time.Second
	// destroyTimeout is how long libvirtd may take to destroy the domain before QEMU is killed directly.
	destroyTimeout = 5 * time.Second
	// callTimeout bounds a call to libvirtd.
	callTimeout = 4 * time.Second
	// stopRequestDelay is how much later than the guest's end a request to stop may come: the agent destroys a deleted
	// VM without a grace period when the kubelet starts to stop its Pod.
	stopRequestDelay = time.Second
)

// supervisor watches the domain until it has ended. All its fields belong to the goroutine of follow.
type supervisor struct {
	options  Options
	domain   string
	socket   string
	children *reaper.Reaper
	libvirtd *reaper.Child
	stop     <-chan os.Signal

	guest     guest
	qemu      int
	client    *libvirtwire.Client
	events    <-chan libvirtwire.Event
	connected chan connection
	// reconnects reports whether an earlier connection was lost.
	reconnects bool
	// repeat, grace, startTimer and kill are nil until they are needed.
	repeat, grace, startTimer, kill <-chan time.Time
}

// connection is the result of connecting in the background.
type connection struct {
	client *libvirtwire.Client
	state  libvirtwire.State
	reason int32
	// found reports whether the domain is defined.
	found bool
	err   error
}

func newSupervisor(o Options, children *reaper.Reaper, libvirtd *reaper.Child, stop <-chan os.Signal) *supervisor {
	return &supervisor{
		options: o, domain: launcherpod.DomainName(o.Namespace, o.Name), socket: launcherpod.LibvirtSocket,
		children: children, libvirtd: libvirtd, stop: stop, connected: make(chan connection, 1),
	}
}

// follow returns the outcome when the guest has ended, or will not be started any more.
func (s *supervisor) follow(ctx context.Context) (launcherpod.Outcome, int) {
	log := logr.FromContextOrDiscard(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.connect(ctx)
	defer func() {
		if s.client != nil {
			s.client.Close()
		}
	}()
	for {
		select {
		case <-s.libvirtd.Done():
			return s.libvirtdEnded()
		case result := <-s.connected:
			if result.err != nil {
				log.Error(result.err, "Cannot reach libvirtd")
				return s.libvirtdUnreachable(log)
			}
			s.useConnection(ctx, result)
		case event, open := <-s.events:
			s.observe(ctx, event, open)
		case <-s.stop:
			if s.requestStop(ctx) {
				return s.guest.outcome(nil)
			}
		case <-s.startTimer:
			if s.isUnstarted() {
				return s.guest.outcome(nil)
			}
		case <-s.repeat:
			s.shutdown(ctx)
		case <-s.grace:
			s.destroy(ctx)
		case <-s.kill:
			log.Info("libvirtd does not destroy the domain, killing QEMU", "pid", s.qemu)
			s.killQEMU(log)
			return s.guest.outcome(nil)
		}
		if s.guest.ended {
			return s.waitAfterEnd(ctx)
		}
	}
}

// connect opens a connection, subscribes to events and reads the domain's state. This order misses no change.
func (s *supervisor) connect(ctx context.Context) {
	result := connection{}
	result.client, result.err = connect(ctx, s.socket)
	if result.err == nil {
		result.err = result.find(ctx, s.domain)
	}
	if result.err != nil && result.client != nil {
		result.client.Close()
	}
	s.connected <- result
}

func (c *connection) find(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := c.client.SubscribeLifecycle(ctx); err != nil {
		return err
	}
	domain, err := c.client.Lookup(ctx, name)
	if noDomain(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c.found = true
	c.state, c.reason, err = c.client.State(ctx, domain)
	return err
}

func noDomain(err error) bool {
	var refused *libvirtwire.Error
	return errors.As(err, &refused) && refused.Code == libvirtwire.CodeNoDomain
}

func (s *supervisor) useConnection(ctx context.Context, result connection) {
	log := logr.FromContextOrDiscard(ctx)
	log.Info(launcherpod.LogConnected, "domain", s.domain, "defined", result.found, "state", result.state)
	s.client, s.events = result.client, result.client.Events()
	s.update(ctx, result)
}

// update updates the guest's state to the one at the time of connecting.
func (s *supervisor) update(ctx context.Context, result connection) {
	before := s.guest.started
	if !result.found {
		s.guest.notDefined()
	} else {
		s.guest.setState(result.state, result.reason)
	}
	switch {
	case s.guest.started && !before:
		s.guestStarted(ctx)
	case !s.guest.started && s.guest.stopRequested:
		s.awaitStart()
	}
}

// awaitStart waits for a start that may be in progress. If it is, an event follows.
func (s *supervisor) awaitStart() { s.startTimer = time.After(startWait) }

// isUnstarted reports whether no guest was started until startTimer. Without a connection, that is unknown.
func (s *supervisor) isUnstarted() bool { return s.client != nil && !s.guest.started }

func (s *supervisor) observe(ctx context.Context, event libvirtwire.Event, open bool) {
	log := logr.FromContextOrDiscard(ctx)
	if !open {
		// libvirtd closed the connection. If it has exited, its Done is closed; if not, connect and read the state again.
		log.Info("The connection to libvirtd was closed, reconnecting")
		s.client, s.events, s.startTimer, s.reconnects = nil, nil, nil, true
		go s.connect(ctx)
		return
	}
	if event.Domain.Name != s.domain {
		return
	}
	log.V(1).Info("Domain event", "event", event.Type, "detail", event.Detail)
	s.guest.observe(event)
	switch {
	case event.Type == libvirtwire.EventDefined:
		log.Info(launcherpod.LogDefined, "domain", s.domain)
	case event.Type == libvirtwire.EventStarted:
		s.guestStarted(ctx)
	case event.Type == libvirtwire.EventStopped && !s.guest.started:
		log.Info("The domain could not be started", "detail", event.Detail)
	}
}

func (s *supervisor) guestStarted(ctx context.Context) {
	s.qemu = qemuPID(s.domain)
	logr.FromContextOrDiscard(ctx).Info(launcherpod.LogGuestRuns, "domain", s.domain, "pid", s.qemu)
	if s.guest.stopRequested {
		s.startShutdown(ctx)
	}
}

// requestStop processes a request to stop. It returns true if there is nothing to wait for.
func (s *supervisor) requestStop(ctx context.Context) bool {
	log := logr.FromContextOrDiscard(ctx)
	if s.guest.stopRequested {
		return false
	}
	s.guest.stopRequested = true
	log.Info("Requested to stop", "gracePeriod", s.options.GracePeriod.String(), "guestRuns", s.guest.started)
	switch {
	case s.guest.started:
		s.startShutdown(ctx)
		return false
	case s.client == nil && s.reconnects:
		return false // The agent may have started a domain. Its state is read when there is a connection.
	case s.client == nil:
		return true // The agent cannot have started a domain yet.
	default:
		s.awaitStart()
		return false
	}
}

func (s *supervisor) startShutdown(ctx context.Context) {
	s.startTimer = nil
	if s.options.GracePeriod == 0 {
		s.destroy(ctx)
		return
	}
	if s.grace == nil {
		s.grace = time.After(s.options.GracePeriod)
	}
	s.shutdown(ctx)
}

func (s *supervisor) shutdown(ctx context.Context) {
	s.repeat = time.After(shutdownInterval)
	s.inBackground(ctx, "Cannot request the guest's shutdown", (*libvirtwire.Client).Shutdown)
}

func (s *supervisor) destroy(ctx context.Context) {
	s.guest.destroyed = true
	s.repeat, s.grace = nil, nil
	s.kill = time.After(destroyTimeout)
	s.inBackground(ctx, "Cannot destroy the domain", (*libvirtwire.Client).Destroy)
}

// inBackground calls libvirtd in another goroutine: a call to a guest agent may take seconds, and must not delay the
// end of the grace period.
func (s *supervisor) inBackground(
	ctx context.Context, failed string, call func(*libvirtwire.Client, context.Context, libvirtwire.Domain) error,
) {
	client := s.client
	if client == nil {
		return // Reconnecting. The next repetition or the kill follows.
	}
	log := logr.FromContextOrDiscard(ctx)
	go func() {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		domain, err := client.Lookup(ctx, s.domain)
		if err == nil {
			err = call(client, ctx, domain)
		}
		if err != nil && ctx.Err() == nil {
			log.Info(failed, "reason", err.Error())
		}
	}()
}

// waitAfterEnd waits until the agent can have read the reason of the end, and the reaper QEMU's status. It returns the
// outcome.
func (s *supervisor) waitAfterEnd(ctx context.Context) (launcherpod.Outcome, int) {
	delay := exitDelay
	if s.guest.end == libvirtwire.StoppedDestroyed && !s.guest.stopRequested {
		delay = stopRequestDelay
	}
	timer := time.After(delay)
	for {
		select {
		case <-s.stop:
			s.guest.stopRequested = true
		case event, open := <-s.events:
			// The event of a panic may follow that of the end.
			if !open {
				s.events = nil
			} else if event.Domain.Name == s.domain && event.Type == libvirtwire.EventCrashed {
				s.guest.observe(event)
			}
		case <-ctx.Done():
			return s.guest.outcome(s.qemuStatus())
		case <-timer:
			return s.guest.outcome(s.qemuStatus())
		}
	}
}

// libvirtdUnreachable kills the guest. If libvirtd has exited, its connections are closed a moment before it is reaped:
// then its exit status is the better reason.
func (s *supervisor) libvirtdUnreachable(log logr.Logger) (launcherpod.Outcome, int) {
	select {
	case <-s.libvirtd.Done():
		return s.libvirtdEnded()
	case <-time.After(stopTimeout):
		s.killQEMU(log)
		return libvirtFailed(nil)
	}
}

func (s *supervisor) libvirtdEnded() (launcherpod.Outcome, int) {
	s.killQEMU(logr.Discard())
	status := s.libvirtd.Status()
	return libvirtFailed(&status)
}

func (s *supervisor) qemuStatus() *unix.WaitStatus {
	if status, ok := s.children.Status(s.qemu); ok && s.qemu != 0 {
		return &status
	}
	return nil
}

// killQEMU kills the guest without libvirtd.
func (s *supervisor) killQEMU(log logr.Logger) {
	pid := s.qemu
	if recorded := qemuPID(s.domain); recorded != 0 {
		pid = recorded
	}
	if pid == 0 {
		return
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		log.Error(err, "Cannot kill QEMU", "pid", pid)
	}
}
