// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package jobs

import (
	"github.com/vireo-project/vireo/internal/agent/snapshotfreeze"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// FreezeForSnapshot freezes a running guest, or ends a freeze, as the intent in the VMI's status demands. It starts that and does not
// wait for it. During a migration no freeze is started, and one that was is canceled: libvirt does not change the domain's metadata then.
func (s *Guest) FreezeForSnapshot(guest snapshotfreeze.Guest) {
	if s.VMI == nil {
		return
	}
	intent := freeze.IntentOf(&s.VMI.Status)
	if vmistatus.Migrating(&s.VMI.Status) {
		intent = nil
	}
	s.syncFreeze(guest, intent)
}

// Thaw ends a freeze for a snapshot, which it does not wait for.
func (s *Guest) Thaw(guest snapshotfreeze.Guest) { s.syncFreeze(guest, nil) }

// syncFreeze starts what an intent demands; nil thaws a guest that is frozen for a snapshot.
func (s *Guest) syncFreeze(guest snapshotfreeze.Guest, intent *freeze.Intent) {
	if !s.Domain.Active() {
		return
	}
	state := &snapshotfreeze.State{VMI: s.Key, Domain: s.DomainName(), Intent: intent, Observed: s.Domain}
	if s.VMI != nil {
		state.Reported = freeze.RecordOf(&s.VMI.Status)
	}
	s.RequeueAfter(s.state.freeze.Sync(s.jobs.freezes, guest, state))
}

// setSnapshotFreeze copies the record of a snapshot's freeze from the domain's metadata. It never removes it: without a record, the
// guest might be frozen for the same intent again.
func (s *Guest) setSnapshotFreeze() {
	record, err := s.Domain.SnapshotFreeze()
	if err != nil || record == nil {
		return
	}
	s.VMI.Status.SnapshotFreezeRecord = record.Status()
}

// setFrozen sets whether the guest is frozen, for a snapshot or on a user's request.
func (s *Guest) setFrozen() {
	status := &s.VMI.Status
	status.FSFreezeStatus = ""
	if s.Domain.Freeze() != nil || s.Domain.FrozenForSnapshot() {
		status.FSFreezeStatus = frozen
	}
}

// frozen is the value of fsFreezeStatus while the guest's file systems are frozen. KubeVirt's (pkg/virt-launcher/virtwrap/api).
const frozen = "frozen"
