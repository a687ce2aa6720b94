// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"time"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
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
	domainReader
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
	if s.incoming != nil {
		// The source node owns the guest until the migration transfers it.
		return &outcome.Wait{Reason: "the launcher Pod to end"}
	}
	if !s.domain.Active() {
		return &outcome.Wait{Reason: "the launcher Pod to end"}
	}
	if s.domain.Freeze() != nil {
		// A guest with frozen file systems cannot shut down.
		guest.KeepThaw(s.domainName(), &hypervisor.Freeze{Thaw: since})
	}
	r.syncFreeze(s, guest, nil)
	destroyAt := since.Add(s.grace() + destroySlack)
	if !s.now.Before(destroyAt) {
		if err := guest.Destroy(ctx, s.domainName()); err != nil {
			return fromConnection(err)
		}
		return readDomainAndWait(ctx, s, guest)
	}
	next := s.cache.shutdown.requested.Add(shutdownInterval)
	if !s.now.Before(next) {
		// A paused guest cannot shut down: it is destroyed after its grace period.
		if s.domain.State == hypervisor.StateRunning {
			if err := guest.Shutdown(ctx, s.domainName()); err != nil {
				return fromConnection(err)
			}
		}
		s.cache.shutdown.requested = s.now
		next = s.now.Add(shutdownInterval)
	}
	if err := readDomain(ctx, s, guest); err != nil {
		return err
	}
	if destroyAt.Before(next) {
		next = destroyAt
	}
	return &outcome.Requeue{After: next.Sub(s.now)}
}

func readDomainAndWait(ctx context.Context, s *scope, guest guestStopper) error {
	if err := readDomain(ctx, s, guest); err != nil {
		return err
	}
	return &outcome.Wait{Reason: "the launcher Pod to end"}
}

// stopRequested returns when the VMI or the Pod was deleted, whichever was first, and whether one was.
func (s *scope) stopRequested() (time.Time, bool) {
	var since time.Time
	if s.vmi != nil && s.vmi.DeletionTimestamp != nil {
		since = s.vmi.DeletionTimestamp.Time
	}
	if s.pod.DeletionTimestamp != nil {
		// A Pod's deletionTimestamp is when its grace period ends; the request was sent that much earlier.
		requested := s.pod.DeletionTimestamp.Time
		if grace := s.pod.DeletionGracePeriodSeconds; grace != nil {
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
	if vmi := s.knownVMI(); vmi != nil {
		if seconds := vmi.Spec.TerminationGracePeriodSeconds; seconds != nil {
			return time.Duration(*seconds) * time.Second
		}
		return defaultGrace
	}
	if seconds := s.pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return max(0, time.Duration(*seconds)*time.Second-podGraceMargin)
	}
	return defaultGrace
}
