// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/agent/snapshotfreeze"
	"github.com/vireo-project/vireo/internal/outcome"
)

const (
	// shutdownInterval is the time between two presses of the power button: a guest that is booting ignores the
	// first. Source: kubevirt/kubevirt pkg/virt-handler, gracefulShutdownRetry.
	shutdownInterval = 5 * time.Second
	// destroySlack is how long after the grace period the agent destroys the domain. virt-launcher, which counts the
	// same period from its SIGTERM, should be first: its outcome then reports a stop on request.
	destroySlack = 2 * time.Second
	// defaultGrace is the grace period of a VMI without terminationGracePeriodSeconds. Source: kubevirt.io/api core/v1,
	// DefaultGracePeriodSeconds.
	defaultGrace = 30 * time.Second
	// podGraceMargin is how much longer a launcher Pod's grace period is than its VMI's.
	// Source: kubevirt/kubevirt pkg/virt-controller/services/template.go
	podGraceMargin = 30 * time.Second
)

// shutdownRequests are this process's requests that the guest shuts down.
type shutdownRequests struct {
	// requested is when the last one was made, or zero.
	requested time.Time
}

// made reports whether there was one.
func (r *shutdownRequests) made() bool { return !r.requested.IsZero() }

// guestStopper stops a guest.
type guestStopper interface {
	phase.DomainReader
	snapshotfreeze.Guest
	// Shutdown requests the guest to power off and returns at once.
	Shutdown(ctx context.Context, name string) error
	// Destroy ends QEMU.
	Destroy(ctx context.Context, name string) error
	// KeepThaw thaws the guest's file systems at the time that the freeze has; nil cancels that.
	KeepThaw(domain string, freeze *hypervisor.Freeze)
}

// shutdown stops the guest of a VMI or Pod that is being deleted: it presses the power button repeatedly during the grace period
// and then destroys the domain.
func (r *Reconciler) shutdown(ctx context.Context, s *scope, guest guestStopper) error {
	since, ok := s.stopRequested()
	if !ok {
		return nil
	}
	if s.Incoming != nil {
		// The source node owns the guest until the migration transfers it.
		return &outcome.Wait{Reason: "the launcher Pod to end"}
	}
	if !s.Domain.Active() {
		return &outcome.Wait{Reason: "the launcher Pod to end"}
	}
	if s.Domain.Freeze() != nil {
		// A guest with frozen file systems cannot shut down.
		guest.KeepThaw(s.DomainName(), &hypervisor.Freeze{Thaw: since})
	}
	s.jobs.Thaw(guest)
	destroyAt := since.Add(s.grace() + destroySlack)
	if !s.Now.Before(destroyAt) {
		if err := guest.Destroy(ctx, s.DomainName()); err != nil {
			return phase.FromConnection(err)
		}
		return readDomainAndWait(ctx, s, guest)
	}
	next := s.cache.shutdown.requested.Add(shutdownInterval)
	if !s.Now.Before(next) {
		// A paused guest cannot shut down: it is destroyed after its grace period.
		if s.Domain.State == hypervisor.StateRunning {
			if err := guest.Shutdown(ctx, s.DomainName()); err != nil {
				return phase.FromConnection(err)
			}
		}
		s.cache.shutdown.requested = s.Now
		next = s.Now.Add(shutdownInterval)
	}
	if err := s.ReadDomain(ctx, guest); err != nil {
		return err
	}
	if destroyAt.Before(next) {
		next = destroyAt
	}
	return &outcome.Requeue{After: next.Sub(s.Now)}
}

func readDomainAndWait(ctx context.Context, s *scope, guest guestStopper) error {
	if err := s.ReadDomain(ctx, guest); err != nil {
		return err
	}
	return &outcome.Wait{Reason: "the launcher Pod to end"}
}

// stopRequested returns when the VMI or the Pod was deleted, whichever was first, and whether one was.
func (s *scope) stopRequested() (time.Time, bool) {
	var since time.Time
	if s.VMI != nil && s.VMI.DeletionTimestamp != nil {
		since = s.VMI.DeletionTimestamp.Time
	}
	if s.Pod.DeletionTimestamp != nil {
		// A Pod's deletionTimestamp is when its grace period ends; the request was sent that much earlier.
		requested := s.Pod.DeletionTimestamp.Time
		if grace := s.Pod.DeletionGracePeriodSeconds; grace != nil {
			requested = requested.Add(-time.Duration(*grace) * time.Second)
		}
		if since.IsZero() || requested.Before(since) {
			since = requested
		}
	}
	return since, !since.IsZero()
}

// grace returns how long the guest may take to shut down.
func (s *scope) grace() time.Duration {
	if vmi := s.KnownVMI(); vmi != nil {
		if seconds := vmi.Spec.TerminationGracePeriodSeconds; seconds != nil {
			return time.Duration(*seconds) * time.Second
		}
		return defaultGrace
	}
	if seconds := s.Pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return max(0, time.Duration(*seconds)*time.Second-podGraceMargin)
	}
	return defaultGrace
}
