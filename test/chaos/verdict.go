// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// The outcomes of a run.
const (
	// migrated: the guest runs on the target, and has not booted again.
	migrated = "migrated"
	// stayed: the guest runs on the source, and has not booted again.
	stayed = "stayed"
	// restarted: the guest has booted again.
	restarted = "restarted"
	// waits: the guest does not run, and its status gives the cause.
	waits = "waits"
	// unclear: none of these applied within the bound.
	unclear = "unclear"
)

// qemu is a running QEMU of the guest.
type qemu struct {
	process int
	node    string
}

// facts are the state after a run that the checks use.
type facts struct {
	// source and target are the nodes; before is the UID of the VMI when the run began.
	source, target string
	before         types.UID
	// phase is the last known phase of the migration; gone is set if the migration is deleted, as it is with its VMI.
	// instance, status, owner (the node) and ready are of the VMI; reason is why it does not run, by its conditions.
	phase         v1.VirtualMachineInstanceMigrationPhase
	gone          bool
	instance      types.UID
	status        v1.VirtualMachineInstancePhase
	owner, reason string
	ready         bool
	pods          []string
	qemus         []qemu
	// executing are the processes of the QEMUs whose CPUs run by the kernel's trace; writer is the one that wrote last.
	executing []int
	writer    int
	// records is the number of records since all faults were repaired, and boots the number of boots since the run began.
	records, boots int
	leftovers      []string
	// refused is set if the kubelet of the node refusedBy has not admitted a Pod of the migration, or has ended it after a
	// restart, which Vireo cannot prevent.
	refused, refusedBy string
	// notReady are the nodes and components that are not ready.
	notReady []string
}

// missing describes each check that does not pass yet.
func (f *facts) missing() []string {
	var all []string
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	replaced := f.gone && f.instance != "" && f.instance != f.before
	add(f.phase != v1.MigrationSucceeded && f.phase != v1.MigrationFailed && !replaced, "the migration is %q", f.phase)
	add(f.gone && !replaced, "the migration was deleted")
	add(f.instance == "" || f.status != v1.Running || !f.ready, "the VMI is %q, ready %t: %s", f.status, f.ready, f.reason)
	add(len(f.pods) != 1, "launcher Pods that have not ended: %v", f.pods)
	add(len(f.qemus) != 1, "QEMUs: %v", f.qemus)
	if len(f.qemus) == 1 {
		q := f.qemus[0]
		add(q.node != f.owner, "the QEMU is on %s, and the node of the VMI is %s", q.node, f.owner)
		add(!slices.Equal(f.executing, []int{q.process}), "QEMU %d is running, and by the kernel's trace %v execute",
			q.process, f.executing)
		add(f.records < 2 || f.writer != q.process, "the guest does not write: %d records, the last by %d", f.records,
			f.writer)
	}
	all = append(all, f.leftovers...)
	add(len(f.notReady) > 0, "not running: %s", strings.Join(f.notReady, ", "))
	return all
}

// outcome is the outcome of a run in which nothing is missing.
func (f *facts) outcome() string {
	switch {
	case f.instance != f.before || f.boots > 0:
		return restarted
	case f.owner == f.target:
		return migrated
	default:
		return stayed
	}
}

// contradictions are inconsistencies of a run in which nothing is missing. kubelets are the nodes whose kubelets were
// killed in the run.
func (f *facts) contradictions(guestKilled bool, kubelets []string) []string {
	var all []string
	if f.refused != "" && !slices.Contains(kubelets, f.refusedBy) {
		all = append(all, f.refused+", although that kubelet was not killed")
	}
	outcome := f.outcome()
	if outcome == migrated && f.phase != v1.MigrationSucceeded || outcome == stayed && f.phase != v1.MigrationFailed {
		all = append(all, fmt.Sprintf("the guest has %s, and the migration is %s", outcome, f.phase))
	}
	if (f.instance != f.before) != (f.boots > 0) {
		all = append(all, fmt.Sprintf("VMI replaced: %t, and the guest has booted %d times", f.instance != f.before, f.boots))
	}
	if f.boots > 1 {
		all = append(all, fmt.Sprintf("the guest has booted %d times", f.boots))
	}
	if outcome == restarted && !guestKilled && f.refused == "" {
		all = append(all, "the guest was restarted, although no process that it needs was killed")
	}
	return all
}

// excused reports whether a guest that does not run is accepted: its status gives the cause, and all other checks pass.
func (f *facts) excused() bool {
	return f.instance != "" && f.status != v1.Running && f.reason != "" && len(f.qemus) <= 1 && len(f.executing) <= 1 &&
		len(f.leftovers) == 0
}
