// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"strings"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// success returns the facts after a successful migration, with changes.
func success(changes ...func(*facts)) *facts {
	f := &facts{
		source: "node1", target: "node2", before: "a", phase: v1.MigrationSucceeded, instance: "a", status: v1.Running,
		owner: "node2",
		ready: true, pods: []string{"virt-launcher-2"}, qemus: []qemu{{7, "node2"}}, executing: []int{7}, writer: 7,
		records: 5,
	}
	for _, change := range changes {
		change(f)
	}
	return f
}

func TestMissing(t *testing.T) {
	if missing := success().missing(); len(missing) > 0 {
		t.Errorf("missing %q, want nothing", missing)
	}
	another := func(f *facts) { f.gone, f.phase, f.instance = true, v1.MigrationRunning, "b" }
	if missing := success(another).missing(); len(missing) > 0 {
		t.Errorf("after the migration was deleted with its VMI, missing %q, want nothing", missing)
	}
	tests := map[string]func(*facts){
		"the migration was deleted":    func(f *facts) { f.gone = true },
		"the migration is":             func(f *facts) { f.phase = v1.MigrationRunning },
		"the VMI is":                   func(f *facts) { f.status = v1.Scheduled },
		"ready false":                  func(f *facts) { f.ready = false },
		"launcher Pods":                func(f *facts) { f.pods = append(f.pods, "virt-launcher-1") },
		"QEMUs: [{7 node2} {8 node1}]": func(f *facts) { f.qemus = append(f.qemus, qemu{8, "node1"}) },
		"QEMUs: []":                    func(f *facts) { f.qemus = nil },
		"the node of the VMI is node1": func(f *facts) { f.owner = "node1" },
		"trace [] execute":             func(f *facts) { f.executing = nil },
		"trace [7 9] execute":          func(f *facts) { f.executing = []int{7, 9} },
		"does not write: 1 records":    func(f *facts) { f.records = 1 },
		"the last by 9":                func(f *facts) { f.writer = 9 },
		"certificate files":            func(f *facts) { f.leftovers = []string{"certificate files of a migration"} },
		"not running: Pod x":           func(f *facts) { f.notReady = []string{"Pod x"} },
	}
	for want, change := range tests {
		if missing := success(change).missing(); len(missing) != 1 || !strings.Contains(missing[0], want) {
			t.Errorf("missing %q, want %q", missing, want)
		}
	}
}

func TestOutcome(t *testing.T) {
	onSource := func(f *facts) { f.owner, f.qemus, f.phase = "node1", []qemu{{7, "node1"}}, v1.MigrationFailed }
	rebooted := func(f *facts) { f.instance, f.boots, f.phase = "b", 1, v1.MigrationFailed }
	refusedBy := func(node string) func(*facts) {
		return func(f *facts) { f.refused, f.refusedBy = "OutOfdevices", node }
	}
	tests := map[string]struct {
		facts  *facts
		killed bool
		want   string
		wrong  string
	}{
		"migrated":                               {success(), false, migrated, ""},
		"stayed":                                 {success(onSource), false, stayed, ""},
		"guest was killed":                       {success(rebooted), true, restarted, ""},
		"guest was killed after it migrated":     {success(rebooted, func(f *facts) { f.phase = v1.MigrationSucceeded }), true, restarted, ""},
		"migrated, but the migration is Failed":  {success(func(f *facts) { f.phase = v1.MigrationFailed }), false, migrated, "the migration is Failed"},
		"stayed, but the migration is Succeeded": {success(onSource, func(f *facts) { f.phase = v1.MigrationSucceeded }), false, stayed, "the migration is Succeeded"},
		"restarted without a cause":              {success(rebooted), false, restarted, "no process that it needs was killed"},
		"refused by a restarted kubelet":         {success(rebooted, refusedBy("node1")), false, restarted, ""},
		"refused by another kubelet":             {success(onSource, refusedBy("node2")), false, stayed, "that kubelet was not killed"},
		"booted in the same VMI":                 {success(func(f *facts) { f.boots = 1 }), true, restarted, "VMI replaced: false"},
		"replaced VMI without a boot":            {success(func(f *facts) { f.instance = "b" }), true, restarted, "booted 0 times"},
		"booted twice":                           {success(rebooted, func(f *facts) { f.boots = 2 }), true, restarted, "booted 2 times"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.facts.outcome(); got != test.want {
				t.Errorf("outcome %q, want %q", got, test.want)
			}
			wrong := strings.Join(test.facts.contradictions(test.killed, []string{"node1"}), "; ")
			if (test.wrong == "") != (wrong == "") || !strings.Contains(wrong, test.wrong) {
				t.Errorf("contradictions %q, want %q", wrong, test.wrong)
			}
		})
	}
}

func TestExcuse(t *testing.T) {
	waiting := func(f *facts) {
		f.status, f.qemus, f.executing, f.reason = v1.Scheduling, nil, nil, "0/2 nodes are available"
	}
	if success().excused() || !success(waiting).excused() {
		t.Error("a guest is excused if and only if it waits with a reason")
	}
	if success(waiting, func(f *facts) { f.reason = "" }).excused() {
		t.Error("a guest that waits without a reason is excused")
	}
	if success(waiting, func(f *facts) { f.leftovers = []string{"x"} }).excused() {
		t.Error("a guest with leftovers is excused")
	}
}
