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
	// migrated: the guest runs on the target, without an interruption.
	migrated = "migrated"
	// stayed: it runs on the source, without an interruption.
	stayed = "stayed"
	// restarted: it has booted again.
	restarted = "restarted"
	// waits: it does not run, and its status says why not.
	waits = "waits"
	// unclear: none of these within the bound.
	unclear = "unclear"
)

// qemu is a QEMU of the guest that there is now.
type qemu struct {
	process int
	node    string
}

// facts are what there is to judge a run by, at a moment after it.
type facts struct {
	// source and target are the nodes; before is the instance's UID when the run began.
	source, target string
	before         types.UID
	// phase is the migration's, as it was last if it is gone: it goes with its instance. instance, status, owner and ready are those of the VMI; reason is why it does not run, in the words of its status.
	phase         v1.VirtualMachineInstanceMigrationPhase
	gone          bool
	instance      types.UID
	status        v1.VirtualMachineInstancePhase
	owner, reason string
	ready         bool
	pods          []string
	qemus         []qemu
	// executing are the processes of the QEMUs that the kernel has seen start their CPUs, and not stop them; writer wrote last.
	executing []int
	writer    int
	// records are how many the guest has written since all was mended, and boots how often it has booted since the run began.
	records, boots int
	leftovers      []string
	// refused is set if a kubelet that was started again has ended the guest's Pod, which is Kubernetes' decision.
	refused string
	// unsettled are the components that do not run.
	unsettled []string
}

// missing is what is not as it has to be, in words.
func (f *facts) missing() []string {
	var all []string
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	replaced := f.gone && f.instance != "" && f.instance != f.before
	add(f.phase != v1.MigrationSucceeded && f.phase != v1.MigrationFailed && !replaced, "the migration is %q", f.phase)
	add(f.gone && !replaced, "the migration is gone")
	add(f.instance == "" || f.status != v1.Running || !f.ready, "the VMI is %q, ready %t: %s", f.status, f.ready, f.reason)
	add(len(f.pods) != 1, "launcher Pods that have not ended: %v", f.pods)
	add(len(f.qemus) != 1, "QEMUs: %v", f.qemus)
	if len(f.qemus) == 1 {
		q := f.qemus[0]
		add(q.node != f.owner, "the QEMU is on %s, the VMI says %s", q.node, f.owner)
		add(!slices.Equal(f.executing, []int{q.process}), "QEMU %d is there, and the kernel has seen %v execute", q.process, f.executing)
		add(f.records < 2 || f.writer != q.process, "the guest does not write: %d records, the last by %d", f.records, f.writer)
	}
	all = append(all, f.leftovers...)
	add(len(f.unsettled) > 0, "not running: %s", strings.Join(f.unsettled, ", "))
	return all
}

// outcome is what has become of the guest, given that nothing is missing.
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

// contradictions are what does not fit together when nothing is missing.
func (f *facts) contradictions(guestKilled bool) []string {
	var all []string
	outcome := f.outcome()
	if outcome == migrated && f.phase != v1.MigrationSucceeded || outcome == stayed && f.phase != v1.MigrationFailed {
		all = append(all, fmt.Sprintf("the guest has %s, and the migration is %s", outcome, f.phase))
	}
	if (f.instance != f.before) != (f.boots > 0) {
		all = append(all, fmt.Sprintf("the instance is another one: %t, and the guest has booted %d times", f.instance != f.before, f.boots))
	}
	if f.boots > 1 {
		all = append(all, fmt.Sprintf("the guest has booted %d times", f.boots))
	}
	if outcome == restarted && !guestKilled && f.refused == "" {
		all = append(all, "the guest was started again, though nothing that it needs was killed")
	}
	return all
}

// excused reports whether the guest need not run, as its status says why it does not, and nothing else is wrong.
func (f *facts) excused() bool {
	return f.instance != "" && f.status != v1.Running && f.reason != "" && len(f.qemus) <= 1 && len(f.executing) <= 1 && len(f.leftovers) == 0
}
