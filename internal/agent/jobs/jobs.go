// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package jobs has the jobs of running guests that objects of the API request: backups of their disks, dumps of their
// memory, and freezes for snapshots. What is done next follows from the intent in the VMI's status and from the record
// in the running domain, by the pure packages that decide about each. So a new agent continues where an earlier one has
// stopped.
package jobs

import (
	"crypto/tls"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/internal/agent/jobs/pull"
	"github.com/vireo-project/vireo/internal/agent/jobs/snapshotfreeze"
	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/decide/snapshot/freeze"
	"github.com/vireo-project/vireo/internal/vmistatus"
)

// Options are the dependencies of Jobs.
type Options struct {
	// Clock is the clock of freezes.
	Clock clock.PassiveClock
	// Enqueue triggers a reconciliation of a VMI. It must not block.
	Enqueue func(types.NamespacedName)
	// ExporterTLS returns the configuration of one connection to the exporter with a name, which reads the disks of a
	// guest. Without it, none can.
	ExporterTLS func(serverName string) (*tls.Config, error)
}

// Jobs are those of the guests of a node.
type Jobs struct {
	// freezes are the freezes of guests for snapshots.
	freezes *snapshotfreeze.Freezes
	// pulls connects exporters to the guests whose disks they read.
	pulls *pull.Pulls
}

// New returns the jobs of a node, of which none runs.
func New(o Options) *Jobs {
	return &Jobs{freezes: snapshotfreeze.New(o.Clock, o.Enqueue), pulls: pull.New(o.ExporterTLS)}
}

// Runnables returns what runs as long as the manager does.
func (j *Jobs) Runnables() []manager.Runnable { return []manager.Runnable{j.freezes, j.pulls} }

// Forget ends what runs for a Pod.
func (j *Jobs) Forget(pod types.UID) { j.pulls.End(pod) }

// State is what earlier reconciliations of a Pod know about its jobs. The zero value knows nothing.
//
// Each part belongs to one subject: only the file that declares the part's type uses its fields, and others call its
// methods.
type State struct {
	freeze snapshotfreeze.Keeper
	backup backupState
	dump   memoryDump
}

// Guest has the jobs of a guest in one reconciliation.
type Guest struct {
	*phase.Scope
	jobs  *Jobs
	state *State
}

// Of returns the jobs of the guest of a reconciliation.
func (j *Jobs) Of(s *phase.Scope, state *State) *Guest {
	return &Guest{Scope: s, jobs: j, state: state}
}

// Connection is what jobs need of libvirtd.
type Connection interface {
	snapshotfreeze.Guest
	diskBackuper
	memoryDumper
}

// Report copies what the running domain says about jobs to the status. It never removes a record: without one, a guest
// might be frozen or backed up again for the same intent.
func (s *Guest) Report() {
	s.setFrozen()
	s.setSnapshotFreeze()
	s.setDiskBackup()
}

// FreezeForSnapshot freezes a running guest, or ends a freeze, as the intent in the VMI's status demands. It starts
// that and does not wait for it. During a migration no freeze is started, and one that was is canceled: libvirt does
// not change the domain's metadata then.
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

// setSnapshotFreeze copies the record of a snapshot's freeze from the domain's metadata. It never removes it: without a
// record, the guest might be frozen for the same intent again.
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

// frozen is the value of fsFreezeStatus while the guest's file systems are frozen. KubeVirt's
// (pkg/virt-launcher/virtwrap/api).
const frozen = "frozen"
