// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"runtime"
	"sync/atomic"

	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/podspec"
)

// scraped is what metrics read of a Pod's guest, at any time.
type scraped struct {
	// guest is the guest if it runs and has metrics.
	guest atomic.Pointer[guestmetrics.Guest]
	// waiting is what the guest waits for, or nil.
	waiting atomic.Pointer[guestmetrics.Waiting]
}

// maxVCPUs limits the vCPUs of a guest that have metrics.
const maxVCPUs = 512

// Monitored returns the guests of this node that have metrics: those that ran when their VMI was last reconciled.
func (r *Reconciler) Monitored() []*guestmetrics.Guest {
	r.mu.Lock()
	defer r.mu.Unlock()
	guests := make([]*guestmetrics.Guest, 0, len(r.pods))
	for _, cache := range r.pods {
		if guest := cache.scraped.guest.Load(); guest != nil {
			guests = append(guests, guest)
		}
	}
	return guests
}

// monitor notes whether the guest has metrics, after a reconciliation. If libvirtd did not respond, that is not known
// and stays as it was.
func monitor(s *scope) {
	switch {
	case !s.Assigned:
		s.cache.scraped.guest.Store(nil)
	case !s.DomainRead:
	case !s.Domain.Active():
		s.cache.scraped.guest.Store(nil)
	default:
		guest := &guestmetrics.Guest{
			Pod: hypervisor.PodRef{UID: s.Pod.UID, VMI: s.Key}, Domain: s.DomainName(), Labels: s.Before.Labels,
			Migrating: s.VMI.Status.MigrationState != nil && s.VMI.Status.MigrationState.EndTimestamp == nil,
			VCPUs:     int(min(podspec.VCPUs(s.VMI), maxVCPUs)),
		}
		devices := &s.VMI.Spec.Domain.Devices
		nics, disks := make([]string, 0, len(devices.Interfaces)), make([]string, 0, len(devices.Disks))
		for i := range devices.Interfaces {
			nics = append(nics, devices.Interfaces[i].Name)
		}
		for i := range devices.Disks {
			disks = append(disks, devices.Disks[i].Name)
		}
		guest.Describe(s.Domain.XML, nics, disks, runtime.NumCPU())
		s.cache.scraped.guest.Store(guest)
	}
}

// Waiting returns the guests of this node that wait for a thaw or for their owner, as of the last reconciliation of
// their Pod.
func (r *Reconciler) Waiting() []guestmetrics.Waiting {
	r.mu.Lock()
	defer r.mu.Unlock()
	var guests []guestmetrics.Waiting
	for _, cache := range r.pods {
		if waiting := cache.scraped.waiting.Load(); waiting != nil {
			guests = append(guests, *waiting)
		}
	}
	return guests
}

// noteWaiting notes what the guest waits for, after a reconciliation. If libvirtd did not respond, that is not known
// and stays as it was.
func noteWaiting(s *scope) {
	if !s.DomainRead {
		return
	}
	waiting := guestmetrics.Waiting{VMI: s.Key, Owner: s.undecided}
	if freeze := s.Domain.Freeze(); freeze != nil {
		waiting.Thaw = freeze.Thaw
	}
	if record, err := s.Domain.SnapshotFreeze(); err == nil && record != nil && !record.Ended() &&
		(waiting.Thaw.IsZero() || record.Deadline.Before(waiting.Thaw)) {
		waiting.Thaw = record.Deadline
	}
	if waiting.Thaw.IsZero() && !waiting.Owner {
		s.cache.scraped.waiting.Store(nil)
		return
	}
	s.cache.scraped.waiting.Store(&waiting)
}
