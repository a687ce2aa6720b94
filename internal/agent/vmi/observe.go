// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

// guestObserver observes a running guest.
type guestObserver interface {
	diskMeter
	credentialsSetter
	// Guest returns the guest agent's last report, or nil. The VMI is enqueued when the report changes.
	Guest(domain string) *hypervisor.GuestInfo
	// KeepThaw thaws the guest's file systems at the time that the freeze has; nil cancels that.
	KeepThaw(domain string, freeze *hypervisor.Freeze)
}

// diskMeter measures disks.
type diskMeter interface {
	// DiskSizes returns the sizes of the disks of a running domain in bytes, by the name of their target.
	DiskSizes(ctx context.Context, name string) (map[string]uint64, error)
}

// observeGuest reads what a running guest reports. It never fails.
func (r *Reconciler) observeGuest(ctx context.Context, s *scope, guest guestObserver) error {
	measureDisks(ctx, s, guest)
	if s.Domain.AgentConnected() {
		s.guest = guest.Guest(s.DomainName())
	}
	s.credentials = r.syncCredentials(s, guest)
	guest.KeepThaw(s.DomainName(), s.Domain.Freeze())
	return nil
}

// diskSizes are the sizes of the running guest's disks in bytes, by the name of their target.
type diskSizes struct{ byTarget map[string]uint64 }

// read reports whether the sizes have been read.
func (d *diskSizes) read() bool { return d.byTarget != nil }

// of returns the size of a disk, or 0 if it is not known.
func (d *diskSizes) of(target string) uint64 { return d.byTarget[target] }

// forget makes measureDisks read the sizes again.
func (d *diskSizes) forget() { d.byTarget = nil }

// measureDisks reads the exact sizes of the guest's disks once. A claim has only a rounded size, and a disk that moves to another
// volume has to keep its own. After a failure the next reconciliation reads them.
func measureDisks(ctx context.Context, s *scope, disks diskMeter) {
	if s.cache.sizes.read() || !s.Domain.Active() {
		return
	}
	sizes, err := disks.DiskSizes(ctx, s.DomainName())
	if err != nil {
		log.FromContext(ctx).V(3).Info("Cannot read the sizes of the guest's disks yet", "error", err.Error())
		return
	}
	s.cache.sizes.byTarget = sizes
}
