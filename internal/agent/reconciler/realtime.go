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

// setRealtime gives the vCPUs of a realtime guest their priority, once for each process of the agent.
func (r *Reconciler) setRealtime(ctx context.Context, s *scope, launcher processProvider) error {
	if s.vmi == nil || !s.domain.Active() || s.cache.realtime {
		return nil
	}
	vcpus, err := domain.RealtimeVCPUs(s.vmi)
	if err != nil {
		return &Terminal{Reason: ReasonInvalidDomain, Err: err}
	}
	if len(vcpus) > 0 {
		exclusive, err := r.ExclusiveCPUs(ctx, client.ObjectKeyFromObject(s.pod), launcherpod.ComputeContainer)
		if err == nil {
			err = r.Files(launcher.Process()).SetRealtime(ctx, vcpus, exclusive)
		}
		if err != nil {
			return fmt.Errorf("the guest runs without realtime priority: %w", err)
		}
	}
	s.cache.realtime = true
	return nil
}
