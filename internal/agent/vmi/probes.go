// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"
	"strconv"

	v1 "github.com/vireo-project/vireo/api/v1"
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
	if s.vmi == nil || !s.domain.Active() {
		return nil
	}
	if vmistatus.Migrating(&s.vmi.Status) {
		return nil
	}
	paused, err := strconv.ParseBool(s.vmi.Annotations[v1.PauseGuestAgentProbesAnnotation])
	if paused = paused && err == nil; paused == s.domain.ProbesPaused() {
		return nil
	}
	return r.attempt(s, "pause probes", reasonSynchronizing, func() error {
		return fromConnection(guest.PauseProbes(ctx, s.domainName(), paused))
	})
}
