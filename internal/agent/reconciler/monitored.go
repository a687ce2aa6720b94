// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package reconciler

import (
	"runtime"

	"github.com/vireo-project/vireo/internal/agent/guestmetrics"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
	"github.com/vireo-project/vireo/internal/podspec"
)

// maxVCPUs limits the vCPUs of a guest that have metrics.
const maxVCPUs = 512

// Monitored returns the guests of this node that have metrics: those that ran when their VMI was last reconciled.
func (r *Reconciler) Monitored() []*guestmetrics.Guest {
	r.mu.Lock()
	defer r.mu.Unlock()
	guests := make([]*guestmetrics.Guest, 0, len(r.pods))
	for _, cache := range r.pods {
		if guest := cache.monitored.Load(); guest != nil {
			guests = append(guests, guest)
		}
	}
	return guests
}

// monitor notes whether the guest has metrics, after a reconciliation. If libvirtd did not respond, that is not known and stays as it
// was.
func monitor(s *scope) {
	switch {
	case !s.assigned:
		s.cache.monitored.Store(nil)
	case !s.domainRead:
	case !s.domain.Active():
		s.cache.monitored.Store(nil)
	default:
		guest := &guestmetrics.Guest{
			Pod: hypervisor.PodRef{UID: s.pod.UID, VMI: s.key}, Domain: s.domainName(), Labels: s.before.Labels,
			Migrating: s.vmi.Status.MigrationState != nil && s.vmi.Status.MigrationState.EndTimestamp == nil,
			VCPUs:     int(min(podspec.VCPUs(s.vmi), maxVCPUs)),
		}
		devices := &s.vmi.Spec.Domain.Devices
		nics, disks := make([]string, 0, len(devices.Interfaces)), make([]string, 0, len(devices.Disks))
		for i := range devices.Interfaces {
			nics = append(nics, devices.Interfaces[i].Name)
		}
		for i := range devices.Disks {
			disks = append(disks, devices.Disks[i].Name)
		}
		guest.Describe(s.domain.XML, nics, disks, runtime.NumCPU())
		s.cache.monitored.Store(guest)
	}
}
