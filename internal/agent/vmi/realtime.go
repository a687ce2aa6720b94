// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"fmt"

	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/outcome"
)

// realtimePriority reports whether all vCPUs of the guest have the priority that they need.
type realtimePriority struct{ set bool }

// reset makes the next reconciliation set the priority again.
func (p *realtimePriority) reset() { p.set = false }

// setRealtime gives the vCPUs of a realtime guest their priority, once for each process of the agent.
func (r *Reconciler) setRealtime(ctx context.Context, s *scope) error {
	if s.VMI == nil || !s.Domain.Active() || s.cache.realtime.set {
		return nil
	}
	vcpus, err := domain.RealtimeVCPUs(s.VMI)
	if err != nil {
		return &outcome.Terminal{Reason: ReasonInvalidDomain, Err: err}
	}
	return s.Attempt("set realtime priority", phase.ReasonSynchronizing, func() error {
		if len(vcpus) > 0 {
			if err := r.Files(s.Pod.UID).SetRealtime(ctx, vcpus); err != nil {
				return fmt.Errorf("the guest runs without realtime priority: %w", err)
			}
		}
		s.cache.realtime.set = true
		return nil
	})
}
