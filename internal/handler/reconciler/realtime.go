// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/vireo-project/vireo/internal/domain"
	"github.com/vireo-project/vireo/internal/launcherpod"
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
		exclusive, err := r.ExclusiveCPUs(ctx, client.ObjectKeyFromObject(s.pod), launcherpod.ComputeContainer)
		if err == nil {
			err = r.Files(s.machine.Process()).SetRealtime(ctx, vcpus, exclusive)
		}
		if err != nil {
			return fmt.Errorf("the guest runs, but not in real time: %w", err)
		}
	}
	s.memory.realtime = true
	return nil
}
