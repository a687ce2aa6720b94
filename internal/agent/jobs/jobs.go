// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package jobs has the jobs of running guests that objects of the API request: backups of their disks, dumps of their memory, and freezes
// for snapshots. What is done next follows from the intent in the VMI's status and from the record in the running domain, by the pure
// packages that decide about each. So a new agent continues where an earlier one has stopped.
package jobs

import (
	"crypto/tls"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/vireo-project/vireo/internal/agent/phase"
	"github.com/vireo-project/vireo/internal/agent/pull"
	"github.com/vireo-project/vireo/internal/agent/snapshotfreeze"
)

// Options are the dependencies of Jobs.
type Options struct {
	// Clock is the clock of freezes.
	Clock clock.PassiveClock
	// Enqueue triggers a reconciliation of a VMI. It must not block.
	Enqueue func(types.NamespacedName)
	// ExporterTLS returns the configuration of one connection to the exporter with a name, which reads the disks of a guest. Without it,
	// none can.
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
// Each part belongs to one subject: only the file that declares the part's type uses its fields, and others call its methods.
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

// Report copies what the running domain says about jobs to the status. It never removes a record: without one, a guest might be frozen or
// backed up again for the same intent.
func (s *Guest) Report() {
	s.setFrozen()
	s.setSnapshotFreeze()
	s.setDiskBackup()
}
