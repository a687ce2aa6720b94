// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package vmi

import (
	"github.com/vireo-project/vireo/internal/agent/snapshotfreeze"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// freezeForSnapshot freezes a running guest, or ends a freeze, as the intent in the VMI's status demands. It starts that and does not
// wait for it. During a migration no freeze is started, and one that was is canceled: libvirt does not change the domain's metadata then.
func (r *Reconciler) freezeForSnapshot(s *scope, guest snapshotfreeze.Guest) {
	if s.vmi == nil {
		return
	}
	intent := freeze.IntentOf(&s.vmi.Status)
	if vmistatus.Migrating(&s.vmi.Status) {
		intent = nil
	}
	r.syncFreeze(s, guest, intent)
}

// syncFreeze starts what an intent demands; nil thaws a guest that is frozen for a snapshot.
func (r *Reconciler) syncFreeze(s *scope, guest snapshotfreeze.Guest, intent *freeze.Intent) {
	if !s.domain.Active() {
		return
	}
	state := &snapshotfreeze.State{VMI: s.key, Domain: s.domainName(), Intent: intent, Observed: s.domain}
	if s.vmi != nil {
		state.Reported = freeze.RecordOf(&s.vmi.Status)
	}
	s.requeueAfter(s.cache.freeze.Sync(r.freezes, guest, state))
}

// setSnapshotFreeze copies the record of a snapshot's freeze from the domain's metadata. It never removes it: without a record, the
// guest might be frozen for the same intent again.
func setSnapshotFreeze(s *scope) {
	record, err := s.domain.SnapshotFreeze()
	if err != nil || record == nil {
		return
	}
	s.vmi.Status.SnapshotFreezeRecord = record.Status()
}

// setFrozen sets whether the guest is frozen, for a snapshot or on a user's request.
func setFrozen(s *scope) {
	status := &s.vmi.Status
	status.FSFreezeStatus = ""
	if s.domain.Freeze() != nil || s.domain.FrozenForSnapshot() {
		status.FSFreezeStatus = frozen
	}
}

// frozen is the value of fsFreezeStatus while the guest's file systems are frozen. KubeVirt's (pkg/virt-launcher/virtwrap/api).
const frozen = "frozen"
