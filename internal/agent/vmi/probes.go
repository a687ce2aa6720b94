// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"strconv"

	v1 "github.com/vireo-project/vireo/api/v1"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// probePauser pauses probes.
type probePauser interface {
	// PauseProbes sets in the running domain whether guestAgentPing probes are paused.
	PauseProbes(ctx context.Context, domain string, paused bool) error
}

// pauseProbes makes guestAgentPing probes succeed without a response of the guest agent while the VMI's annotation requests it,
// as during maintenance of the guest. The setting is in the domain's metadata, which libvirt does not change during a migration.
func (r *Reconciler) pauseProbes(ctx context.Context, s *scope, guest probePauser) error {
	if s.VMI == nil || !s.Domain.Active() {
		return nil
	}
	if vmistatus.Migrating(&s.VMI.Status) {
		return nil
	}
	paused, err := strconv.ParseBool(s.VMI.Annotations[v1.PauseGuestAgentProbesAnnotation])
	if paused = paused && err == nil; paused == s.Domain.ProbesPaused() {
		return nil
	}
	return s.Attempt("pause probes", phase.ReasonSynchronizing, func() error {
		return phase.FromConnection(guest.PauseProbes(ctx, s.DomainName(), paused))
	})
}
