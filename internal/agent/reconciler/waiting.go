// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
)

// Waiting returns the guests of this node that wait for a thaw or for their owner, as of the last reconciliation of their Pod.
func (r *Reconciler) Waiting() []guestmetrics.Waiting {
	r.mu.Lock()
	defer r.mu.Unlock()
	var guests []guestmetrics.Waiting
	for _, cache := range r.pods {
		if waiting := cache.waiting.Load(); waiting != nil {
			guests = append(guests, *waiting)
		}
	}
	return guests
}

// noteWaiting notes what the guest waits for, after a reconciliation. If libvirtd did not respond, that is not known and stays as it was.
func noteWaiting(s *scope) {
	if !s.domainRead {
		return
	}
	waiting := guestmetrics.Waiting{VMI: s.key, Owner: s.undecided}
	if freeze := s.domain.Freeze(); freeze != nil {
		waiting.Thaw = freeze.Thaw
	}
	if record, err := s.domain.SnapshotFreeze(); err == nil && record != nil && !record.Ended() &&
		(waiting.Thaw.IsZero() || record.Deadline.Before(waiting.Thaw)) {
		waiting.Thaw = record.Deadline
	}
	if waiting.Thaw.IsZero() && !waiting.Owner {
		s.cache.waiting.Store(nil)
		return
	}
	s.cache.waiting.Store(&waiting)
}
