// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"time"

	"github.com/vireo-project/vireo/internal/handler/hypervisor"
)

const (
	// shutdownInterval is the pause between two presses of the power button: a guest that boots does not see the
	// first. Source: kubevirt/kubevirt pkg/virt-handler, gracefulShutdownRetry.
	shutdownInterval = 5 * time.Second
	// destroySlack lets virt-launcher, which counts the same grace period from its SIGTERM, destroy the domain first:
	// it then knows that the end was asked for. The agent does it when the launcher does not.
	destroySlack = 2 * time.Second
	// defaultGrace is the grace period of a VMI that names none. Source: kubevirt.io/api core/v1,
	// DefaultGracePeriodSeconds.
	defaultGrace = 30 * time.Second
	// podGraceMargin is how much longer a launcher Pod's grace period is than its VMI's.
	// Source: kubevirt/kubevirt pkg/virt-controller/services/template.go
	podGraceMargin = 30 * time.Second
)

// shutdown ends the guest of a VMI or Pod that is being deleted: the power button, again and again, then the plug.
func (r *Reconciler) shutdown(ctx context.Context, s *scope) error {
	since, ok := s.stopRequested()
	if !ok {
		return nil
	}
	if s.incoming != nil {
		// Whose guest it is, is not decided here, and what is not this node's is not shut down.
		return &Wait{Reason: "the launcher Pod to end"}
	}
	if !s.domain.Active() {
		return &Wait{Reason: "the launcher Pod to end"}
	}
	if s.domain.Freeze() != nil {
		// A guest whose file systems take no writes cannot shut down.
		s.machine.KeepThaw(s.domainName(), &hypervisor.Freeze{Thaw: since})
	}
	destroyAt := since.Add(s.grace() + destroySlack)
	if !s.now.Before(destroyAt) {
		if err := s.machine.Destroy(ctx, s.domainName()); err != nil {
			return fromMachine(err)
		}
		return r.lookAndWait(ctx, s)
	}
	next := s.memory.lastShutdown.Add(shutdownInterval)
	if !s.now.Before(next) {
		// A guest whose CPUs stand still cannot act: it gets its grace period and then the plug.
		if s.domain.State == hypervisor.StateRunning {
			if err := s.machine.Shutdown(ctx, s.domainName()); err != nil {
				return fromMachine(err)
			}
		}
		s.memory.lastShutdown = s.now
		next = s.now.Add(shutdownInterval)
	}
	if err := r.look(ctx, s); err != nil {
		return err
	}
	if destroyAt.Before(next) {
		next = destroyAt
	}
	return &Requeue{After: next.Sub(s.now)}
}

func (r *Reconciler) lookAndWait(ctx context.Context, s *scope) error {
	if err := r.look(ctx, s); err != nil {
		return err
	}
	return &Wait{Reason: "the launcher Pod to end"}
}

// stopRequested is when the VMI or the Pod was deleted, whichever came first.
func (s *scope) stopRequested() (time.Time, bool) {
	var since time.Time
	if s.vmi != nil && s.vmi.DeletionTimestamp != nil {
		since = s.vmi.DeletionTimestamp.Time
	}
	if s.pod.DeletionTimestamp != nil {
		// A Pod's deletionTimestamp is when it must be gone; the request came its grace period earlier.
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

// grace is how long the guest may take.
func (s *scope) grace() time.Duration {
	if vmi := s.spec(); vmi != nil {
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
