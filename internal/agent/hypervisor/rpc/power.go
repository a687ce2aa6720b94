// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
	"libvirt.org/go/libvirt"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/decide/migration/protocol"
	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/wire/libvirtwire"
)

// Pause stops the guest's CPUs. It does nothing if the guest is paused.
func (c *Conn) Pause(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "pause the guest", (*libvirt.Domain).Suspend)
}

// Unpause resumes the guest's CPUs. It does nothing if the guest runs, and fails with ErrNotRunning while a migration
// has it paused: the other side may run it.
func (c *Conn) Unpause(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "unpause the guest", func(d *libvirt.Domain) error {
		state, reason, err := d.GetState()
		if err != nil || state == libvirt.DOMAIN_RUNNING {
			return err
		}
		if state == libvirt.DOMAIN_PAUSED && sourceState(state, reason) != protocol.SourceRunning {
			return fmt.Errorf("%w: a migration has paused it", hypervisor.ErrNotRunning)
		}
		return d.Resume()
	})
}

// Reset presses the guest's reset button. Unless a user has paused the guest, it runs afterwards: a guest that stopped
// after an internal error or a crash cannot be resumed before.
func (c *Conn) Reset(ctx context.Context, domain string) error {
	return c.onDomain(ctx, domain, "reset the guest", func(d *libvirt.Domain) error {
		state, reason, err := d.GetState()
		if err != nil {
			return err
		}
		if err := d.Reset(0); err != nil || state != libvirt.DOMAIN_PAUSED {
			return err
		}
		switch pausedReason(libvirt.DomainPausedReason(reason)) {
		case hypervisor.PausedUnknown, hypervisor.PausedCrashed, hypervisor.PausedWatchdog, hypervisor.PausedAPIError:
			return d.Resume()
		default:
			return nil
		}
	})
}

// Reboot requests a reboot from the guest agent, or by the power button if there is no agent. It does not wait for the
// reboot.
func (c *Conn) Reboot(ctx context.Context, domain string) error {
	return fromGuest(c.withAgent(ctx, domain, "reboot the guest", func(d *libvirt.Domain) error {
		return d.Reboot(libvirt.DOMAIN_REBOOT_GUEST_AGENT | libvirt.DOMAIN_REBOOT_ACPI_POWER_BTN)
	}))
}

// onDomain runs calls to which libvirtd and QEMU respond without the guest.
func (c *Conn) onDomain(ctx context.Context, domain, what string, do func(*libvirt.Domain) error) error {
	return fromGuest(c.call(ctx, queryTimeout, what, func(l *libvirt.Connect) error { return withDomain(l, domain, do) }))
}

// fromGuest wraps error responses about the guest with the errors of package hypervisor.
func fromGuest(err error) error {
	switch {
	case isCode(err, libvirt.ERR_OPERATION_INVALID):
		return fmt.Errorf("%w: %w", hypervisor.ErrNotRunning, err)
	case isCode(err, libvirt.ERR_AGENT_UNRESPONSIVE), isCode(err, libvirt.ERR_AGENT_COMMAND_TIMEOUT):
		return fmt.Errorf("%w: %w", hypervisor.ErrGuestSilent, err)
	default:
		return err
	}
}

// Screenshot calls a function with an image of the guest's screen and its MIME type. The stream comes from the
// launcher: it may not be an image, and it may not end.
func (c *Conn) Screenshot(ctx context.Context, domain string, take func(mime string, image io.Reader) error) error {
	return c.within(ctx, queryTimeout, domain, "take a screenshot",
		func(ctx context.Context, client *libvirtwire.Client, d libvirtwire.Domain) error {
			stream, mime, err := client.Screenshot(ctx, d)
			if err != nil {
				return err
			}
			// This closes the connection to a launcher that sends too slowly.
			stop := context.AfterFunc(ctx, client.Close)
			defer stop()
			return take(hypervisor.Clean(mime), stream)
		})
}

// OpenGraphics connects a new client to QEMU's VNC server and returns the connection.
//
// The agent creates both ends of the connection and passes one to QEMU. With libvirt's alternative
// (virDomainOpenGraphicsFD) the launcher would choose the descriptor that the agent receives, and reading from it may
// block or have other effects than reading from a socket.
func (c *Conn) OpenGraphics(ctx context.Context, domain string) (net.Conn, error) {
	local, remote, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = remote.Close() }()
	err = c.within(ctx, openTimeout, domain, "open the screen",
		func(ctx context.Context, client *libvirtwire.Client, d libvirtwire.Domain) error {
			return client.OpenGraphics(ctx, d, remote, libvirtwire.GraphicsSkipAuth)
		})
	if err != nil {
		_ = local.Close()
		return nil, err
	}
	return local, nil
}

// socketPair returns two connected sockets: one to use and one to pass to another process.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	local, remote := os.NewFile(uintptr(fds[0]), "screen"), os.NewFile(uintptr(fds[1]), "screen")
	// The connection has a descriptor of its own.
	defer func() { _ = local.Close() }()
	conn, err := net.FileConn(local)
	if err != nil {
		_ = remote.Close()
		return nil, nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	return conn, remote, nil
}

const (
	// clockTimeout is how long the agent tries to set the clock of a resumed guest. KubeVirt's value
	// (pkg/virt-launcher/virtwrap, setGuestTime).
	clockTimeout = time.Minute
	// firstClockPause is the delay after the first attempt, and maxClockPause the longest.
	firstClockPause, maxClockPause = time.Second, 15 * time.Second
	// clockTries is how often the clock is set without a delay after the guest agent connected or the guest was resumed,
	// and clockTryPause the time between two attempts beyond that: a guest decides how often its agent connects.
	clockTries    = 3
	clockTryPause = 5 * time.Second
)

// clockSetter sets the clock of a guest that was paused or migrated. It runs in its own goroutine, so that a guest
// agent that does not respond does not block the reconciler.
type clockSetter struct {
	time clock.PassiveClock
	// trigger starts the next attempt at once, when the guest agent connects or the guest is resumed again.
	trigger chan struct{}

	mu sync.Mutex
	// until is when to give up. It is extended when the guest is resumed again.
	until  time.Time
	active bool
}

func newClockSetter(time clock.PassiveClock) clockSetter {
	return clockSetter{time: time, trigger: make(chan struct{}, 1)}
}

// guestResumed sets the clock of a resumed guest, which is behind by the time for which the guest was paused: NTP in
// the guest may not correct that much. The clock of a guest without an agent is not set.
func (c *Conn) guestResumed(domain string) {
	c.clock.resumed(c.Done(), func() error { return c.setClock(domain) },
		log.Log.WithName("hypervisor").WithValues("vmi", c.pod.VMI))
}

// resumed starts to set the clock, or starts again.
func (s *clockSetter) resumed(done <-chan struct{}, set func() error, logger logr.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = s.time.Now().Add(clockTimeout)
	if s.active {
		select {
		case s.trigger <- struct{}{}:
		default:
		}
		return
	}
	s.active = true
	go s.keep(done, set, logger)
}

// keep tries until the clock is set, the guest agent has not responded for clockTimeout, or the connection is closed.
func (s *clockSetter) keep(done <-chan struct{}, set func() error, logger logr.Logger) {
	pauses, limit := limits.ExponentialBackoff(firstClockPause, maxClockPause),
		limits.NewTokenBucket(clockTries, limits.ExponentialBackoff(clockTryPause, clockTryPause))
	for {
		select {
		case <-done:
			return
		case <-time.After(limit.Delay(s.time.Now())):
		}
		limit.Take(s.time.Now())
		until := s.deadline()
		err := set()
		switch {
		case err == nil, !errors.Is(err, hypervisor.ErrGuestSilent):
			if err != nil {
				logger.V(3).Info("Cannot set the guest's clock", "error", err.Error())
			}
			if s.done(until) {
				return
			}
			continue
		case !s.time.Now().Before(until) && s.done(until):
			logger.V(3).Info("Cannot set the guest's clock because its agent does not respond", "error", err.Error())
			return
		}
		select {
		case <-done:
			return
		case <-s.trigger:
			pauses = limits.ExponentialBackoff(firstClockPause, maxClockPause)
		case <-time.After(pauses.Duration):
			pauses.Step()
		}
	}
}

// setClock sets the guest's clock to the node's time. libvirt also makes QEMU drop the real-time clock's missed ticks.
func (c *Conn) setClock(domain string) error {
	return fromGuest(c.withAgent(context.Background(), domain, "set the guest's clock", func(d *libvirt.Domain) error {
		now := c.clock.time.Now()
		return d.SetTime(now.Unix(), uint(now.Nanosecond()), 0)
	}))
}

func (s *clockSetter) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

// done stops the attempts, unless the guest was resumed again in the meantime.
func (s *clockSetter) done(until time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = !s.until.Equal(until)
	return !s.active
}
