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
	"github.com/vireo-project/vireo/internal/libvirtrpc"
)

const (
	// shutdownInterval is the pause between two requests to shut down: a guest that boots ignores the first
	// ones. KubeVirt repeats at the same pace.
	shutdownInterval = 5 * time.Second
	// settleTime is how long a domain that is defined and not running may take to start when the launcher is
	// told to stop meanwhile.
	settleTime = time.Second
	// destroyTimeout is how long libvirtd may take to destroy the domain before QEMU is killed directly.
	destroyTimeout = 5 * time.Second
	// callTimeout bounds a call to libvirtd.
	callTimeout = 4 * time.Second
	// requestTime is how long a request to stop may lag behind the agent, which destroys a deleted VM with no
	// grace period at the same moment at which the kubelet is told to stop its Pod.
	requestTime = time.Second
)

// supervisor follows the domain until it has ended. All its fields belong to the goroutine of follow.
type supervisor struct {
	options  Options
	domain   string
	socket   string
	children *reaper.Reaper
	libvirtd *reaper.Child
	stop     <-chan os.Signal

	guest     guest
	qemu      int
	client    *libvirtrpc.Client
	events    <-chan libvirtrpc.Event
	connected chan connection
	// repeat, grace, settle and kill are nil until they are needed.
	repeat, grace, settle, kill <-chan time.Time
}

// connection is the result of connecting in the background.
type connection struct {
	client *libvirtrpc.Client
	state  libvirtrpc.State
	reason int32
	// found says that the domain is defined.
	found bool
	err   error
}

func newSupervisor(o Options, children *reaper.Reaper, libvirtd *reaper.Child, stop <-chan os.Signal) *supervisor {
	return &supervisor{
		options: o, domain: launcherpod.DomainName(o.Namespace, o.Name), socket: launcherpod.LibvirtSocket,
		children: children, libvirtd: libvirtd, stop: stop, connected: make(chan connection, 1),
	}
}

// follow returns when the guest has ended or never will run, with what to tell the Pod's readers.
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
			s.adopt(ctx, result)
		case event, open := <-s.events:
			s.observe(ctx, event, open)
		case <-s.stop:
			if s.requestStop(ctx) {
				return s.guest.outcome(nil)
			}
		case <-s.settle:
			if !s.guest.started {
				return s.guest.outcome(nil)
			}
		case <-s.repeat:
			s.shutdown(ctx)
		case <-s.grace:
			s.destroy(ctx)
		case <-s.kill:
			log.Info("libvirtd does not destroy the domain, QEMU is killed", "pid", s.qemu)
			s.killQEMU(log)
			return s.guest.outcome(nil)
		}
		if s.guest.ended {
			return s.guestEnded(ctx)
		}
	}
}

// connect opens a connection, asks for events and reads the domain's state, in this order: what happens in
// between arrives as an event.
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
	var answer *libvirtrpc.Error
	return errors.As(err, &answer) && answer.Code == libvirtrpc.CodeNoDomain
}

func (s *supervisor) adopt(ctx context.Context, result connection) {
	log := logr.FromContextOrDiscard(ctx)
	log.Info(launcherpod.LogConnected, "domain", s.domain, "defined", result.found, "state", result.state)
	s.client, s.events = result.client, result.client.Events()
	if !result.found {
		s.guest.vanish()
	} else {
		before := s.guest.started
		s.guest.adopt(result.state, result.reason)
		if s.guest.started && !before {
			s.guestStarted(ctx)
		}
	}
}

func (s *supervisor) observe(ctx context.Context, event libvirtrpc.Event, open bool) {
	log := logr.FromContextOrDiscard(ctx)
	if !open {
		// libvirtd closed the connection. If it ended, its Done says so; if not, connect and look again.
		log.Info("The connection to libvirtd ended, connecting again")
		s.client, s.events = nil, nil
		go s.connect(ctx)
		return
	}
	if event.Domain.Name != s.domain {
		return
	}
	log.V(1).Info("Domain event", "event", event.Type, "detail", event.Detail)
	s.guest.observe(event)
	switch {
	case event.Type == libvirtrpc.EventDefined:
		log.Info(launcherpod.LogDefined, "domain", s.domain)
	case event.Type == libvirtrpc.EventStarted:
		s.guestStarted(ctx)
	case event.Type == libvirtrpc.EventStopped && !s.guest.started:
		log.Info("The domain could not be started", "detail", event.Detail)
	}
}

func (s *supervisor) guestStarted(ctx context.Context) {
	s.qemu = qemuPID(s.domain)
	logr.FromContextOrDiscard(ctx).Info(launcherpod.LogGuestRuns, "domain", s.domain, "pid", s.qemu)
	if s.guest.stopRequested {
		s.beginShutdown(ctx)
	}
}

// requestStop takes a request to end. It returns true if there is nothing to wait for.
func (s *supervisor) requestStop(ctx context.Context) bool {
	log := logr.FromContextOrDiscard(ctx)
	if s.guest.stopRequested {
		return false // once is enough
	}
	s.guest.stopRequested = true
	log.Info("Asked to stop", "gracePeriod", s.options.GracePeriod.String(), "guestRuns", s.guest.started)
	switch {
	case s.guest.started:
		s.beginShutdown(ctx)
		return false
	case s.client == nil:
		return true // nobody could have started a domain yet
	default:
		// A start may be under way; if it is, its event comes.
		s.settle = time.After(settleTime)
		return false
	}
}

func (s *supervisor) beginShutdown(ctx context.Context) {
	s.settle = nil
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
	s.inBackground(ctx, "Cannot ask the guest to shut down", (*libvirtrpc.Client).Shutdown)
}

func (s *supervisor) destroy(ctx context.Context) {
	s.guest.destroyed = true
	s.repeat, s.grace = nil, nil
	s.kill = time.After(destroyTimeout)
	s.inBackground(ctx, "Cannot destroy the domain", (*libvirtrpc.Client).Destroy)
}

// inBackground calls libvirtd beside the loop: a call to a guest's agent may take seconds, and the end of the
// grace period must not wait for it.
func (s *supervisor) inBackground(
	ctx context.Context, failed string, call func(*libvirtrpc.Client, context.Context, libvirtrpc.Domain) error,
) {
	client := s.client
	if client == nil {
		return // connecting again; the next repetition or the kill does it
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

// guestEnded gives the agent a moment to read why, and the reaper to see QEMU's end.
func (s *supervisor) guestEnded(ctx context.Context) (launcherpod.Outcome, int) {
	linger := lingerTime
	if s.guest.end == libvirtrpc.StoppedDestroyed && !s.guest.stopRequested {
		linger = requestTime
	}
	timer := time.After(linger)
	for {
		select {
		case <-s.stop:
			s.guest.stopRequested = true
		case event, open := <-s.events:
			// The event of a panic may come after that of the end.
			if !open {
				s.events = nil
			} else if event.Domain.Name == s.domain && event.Type == libvirtrpc.EventCrashed {
				s.guest.observe(event)
			}
		case <-ctx.Done():
			return s.guest.outcome(s.qemuStatus())
		case <-timer:
			return s.guest.outcome(s.qemuStatus())
		}
	}
}

// libvirtdUnreachable ends the guest. A daemon that died closes its connections a moment before its end is
// reaped: its end is the better reason.
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

// killQEMU ends the guest without libvirtd.
func (s *supervisor) killQEMU(log logr.Logger) {
	pid := s.qemu
	if noted := qemuPID(s.domain); noted != 0 {
		pid = noted
	}
	if pid == 0 {
		return
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		log.Error(err, "Cannot kill QEMU", "pid", pid)
	}
}
