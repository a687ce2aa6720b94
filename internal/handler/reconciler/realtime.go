// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"fmt"

	"github.com/vireo-project/vireo/internal/domain"
)

// realtime gives the vCPUs of a realtime guest their priority, once in the life of its Pod.
func (r *Reconciler) realtime(ctx context.Context, s *scope) error {
	if s.vmi == nil || !s.domain.Active() || s.memory.realtime {
		return nil
	}
	vcpus, err := domain.RealtimeVCPUs(s.vmi)
	if err != nil {
		return &Terminal{Reason: ReasonInvalidDomain, Err: err}
	}
	if len(vcpus) > 0 {
		if err := r.Files(s.machine.Process()).SetRealtime(ctx, vcpus); err != nil {
			return fmt.Errorf("the guest runs, but not in real time: %w", err)
		}
	}
	s.memory.realtime = true
	return nil
}
