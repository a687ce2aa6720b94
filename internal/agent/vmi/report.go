// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/limits"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// reports limits the writes of the status.
type reports struct {
	// writes limits all writes but the unthrottled ones, and guest those that the guest alone causes.
	writes      *limits.TokenBucket
	unthrottled unthrottledReports
	guest       guestWriteLimit
}

func newReports() reports {
	return reports{
		guest:  newGuestWriteLimit(),
		writes: limits.NewTokenBucket(writeBurst, limits.ExponentialBackoff(writePause, maxWritePause)),
	}
}

// report writes the status and records the events. Events about actions are recorded even if the write fails, because the next
// reconciliation does not repeat the action. Events about changes of the status are recorded only after the write, because the next
// reconciliation derives them again. It returns how long a rate-limited change of the guest or the launcher is delayed.
func (r *Reconciler) report(ctx context.Context, s *scope, phaseErr error) (delay time.Duration, err error) {
	if s.Assigned {
		delay, err = r.writeStatus(ctx, s, phaseErr)
	}
	if s.KnownVMI() != nil {
		for _, e := range s.Events {
			r.Recorder.Eventf(s.KnownVMI(), nil, e.Type, e.Reason, e.Reason, "%s", e.Message)
		}
	}
	return delay, client.IgnoreNotFound(err)
}

// writeStatus computes and writes the status, and adds the events that follow from the change.
func (r *Reconciler) writeStatus(ctx context.Context, s *scope, phaseErr error) (delay time.Duration, err error) {
	limit := &s.cache.reports.guest
	if s.Domain.Active() {
		delay, s.delayedReport = limit.delay(s.report(), s.Now)
	}
	computeStatus(s, phaseErr)
	changed := !equality.Semantic.DeepEqual(&s.Before.Status, &s.VMI.Status)
	var unthrottled bool
	if changed {
		postponed := s.cache.reports.writes.Delay(s.Now)
		unthrottled = postponed > 0 && s.cache.reports.unthrottled.take(&s.Before.Status, &s.VMI.Status)
		if postponed > 0 && !unthrottled {
			return postponed, nil
		}
		if changed, err = r.patchStatus(ctx, s); err != nil {
			return 0, err
		}
	}
	if changed && !unthrottled {
		s.cache.reports.writes.Take(s.Now)
	}
	if s.Domain.Active() {
		limit.written(s.report(), changed, s.Now)
	}
	s.Events = append(s.Events, transitions(&s.Before.Status, &s.VMI.Status)...)
	s.addNotMigratableEvent()
	s.addIOErrorEvents()
	s.addTruncatedEvent()
	return delay, nil
}

// patchStatus patches the status when the namespace gets a slot, and reports whether the patch changed anything.
func (r *Reconciler) patchStatus(ctx context.Context, s *scope) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err = r.api.Do(ctx, s.Key.Namespace, func() error {
		changed, err = vmistatus.Patch(ctx, r.Client, vmistatus.Handler, s.Before, s.VMI)
		return err
	})
	return changed, err
}
