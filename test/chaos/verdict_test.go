// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package main

import (
	"strings"
	"testing"

	v1 "github.com/vireo-project/vireo/api/v1"
)

// well is what there is after a migration that has succeeded, with changes.
func well(changes ...func(*facts)) *facts {
	f := &facts{
		source: "node1", target: "node2", before: "a", phase: v1.MigrationSucceeded, instance: "a", status: v1.Running, owner: "node2",
		ready: true, pods: []string{"virt-launcher-2"}, qemus: []qemu{{7, "node2"}}, executing: []int{7}, writer: 7, records: 5,
	}
	for _, change := range changes {
		change(f)
	}
	return f
}

func TestMissing(t *testing.T) {
	if missing := well().missing(); len(missing) > 0 {
		t.Errorf("nothing is missing, and it says %q", missing)
	}
	another := func(f *facts) { f.gone, f.phase, f.instance = true, v1.MigrationRunning, "b" }
	if missing := well(another).missing(); len(missing) > 0 {
		t.Errorf("a migration went with its instance, and it says %q", missing)
	}
	tests := map[string]func(*facts){
		"the migration is gone":            func(f *facts) { f.gone = true },
		"the migration is":                 func(f *facts) { f.phase = v1.MigrationRunning },
		"the VMI is":                       func(f *facts) { f.status = v1.Scheduled },
		"ready false":                      func(f *facts) { f.ready = false },
		"launcher Pods":                    func(f *facts) { f.pods = append(f.pods, "virt-launcher-1") },
		"QEMUs: [{7 node2} {8 node1}]":     func(f *facts) { f.qemus = append(f.qemus, qemu{8, "node1"}) },
		"QEMUs: []":                        func(f *facts) { f.qemus = nil },
		"the VMI says node1":               func(f *facts) { f.owner = "node1" },
		"the kernel has seen [] execute":   func(f *facts) { f.executing = nil },
		"the kernel has seen [7 9] execut": func(f *facts) { f.executing = []int{7, 9} },
		"does not write: 1 records":        func(f *facts) { f.records = 1 },
		"the last by 9":                    func(f *facts) { f.writer = 9 },
		"certificate files":                func(f *facts) { f.leftovers = []string{"certificate files of a migration"} },
		"not running: Pod x":               func(f *facts) { f.unsettled = []string{"Pod x"} },
	}
	for want, change := range tests {
		if missing := well(change).missing(); len(missing) != 1 || !strings.Contains(missing[0], want) {
			t.Errorf("it says %q, want %q", missing, want)
		}
	}
}

func TestOutcome(t *testing.T) {
	back := func(f *facts) { f.owner, f.qemus, f.phase = "node1", []qemu{{7, "node1"}}, v1.MigrationFailed }
	again := func(f *facts) { f.instance, f.boots, f.phase = "b", 1, v1.MigrationFailed }
	tests := map[string]struct {
		facts  *facts
		killed bool
		want   string
		wrong  string
	}{
		"moved":                        {well(), false, migrated, ""},
		"kept":                         {well(back), false, stayed, ""},
		"killed":                       {well(again), true, restarted, ""},
		"killed after it had moved":    {well(again, func(f *facts) { f.phase = v1.MigrationSucceeded }), true, restarted, ""},
		"moved, and nobody says so":    {well(func(f *facts) { f.phase = v1.MigrationFailed }), false, migrated, "the migration is Failed"},
		"kept, and nobody says so":     {well(back, func(f *facts) { f.phase = v1.MigrationSucceeded }), false, stayed, "the migration is Succeeded"},
		"restarted for nothing":        {well(again), false, restarted, "nothing that it needs was killed"},
		"refused by a kubelet":         {well(again, func(f *facts) { f.refused = "OutOfdevices" }), false, restarted, ""},
		"booted in the same instance":  {well(func(f *facts) { f.boots = 1 }), true, restarted, "another one: false"},
		"another instance without one": {well(func(f *facts) { f.instance = "b" }), true, restarted, "booted 0 times"},
		"booted twice":                 {well(again, func(f *facts) { f.boots = 2 }), true, restarted, "booted 2 times"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.facts.outcome(); got != test.want {
				t.Errorf("the guest has %s, want %s", got, test.want)
			}
			wrong := strings.Join(test.facts.contradictions(test.killed), "; ")
			if (test.wrong == "") != (wrong == "") || !strings.Contains(wrong, test.wrong) {
				t.Errorf("wrong is %q, want %q", wrong, test.wrong)
			}
		})
	}
}

func TestExcuse(t *testing.T) {
	waiting := func(f *facts) {
		f.status, f.qemus, f.executing, f.reason = v1.Scheduling, nil, nil, "0/2 nodes are available"
	}
	if well().excused() || !well(waiting).excused() {
		t.Error("a guest that waits has to say why, and one that runs needs no excuse")
	}
	if well(waiting, func(f *facts) { f.reason = "" }).excused() {
		t.Error("a guest that does not say why it waits is excused")
	}
	if well(waiting, func(f *facts) { f.leftovers = []string{"x"} }).excused() {
		t.Error("what is left over is excused")
	}
}
