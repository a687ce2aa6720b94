// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"context"
	"strconv"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// probes has probes by guestAgentPing pass without asking the guest while the VMI's annotation says so, as during maintenance of the
// guest. The note moves with the guest; while it does, libvirt changes nothing about the domain.
func (r *Reconciler) probes(ctx context.Context, s *scope) error {
	if s.vmi == nil || !s.domain.Active() {
		return nil
	}
	if m := s.vmi.Status.MigrationState; m != nil && !vmistatus.HasEnded(m) {
		return nil
	}
	paused, err := strconv.ParseBool(s.vmi.Annotations[v1.PauseGuestAgentProbesAnnotation])
	if paused = paused && err == nil; paused == s.domain.ProbesPaused() {
		return nil
	}
	return fromMachine(s.machine.PauseProbes(ctx, s.domainName(), paused))
}
