// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podproc

import "testing"

// A probe of a program runs beside it, and may have a smaller process ID.
func TestOldest(t *testing.T) {
	all := []Process{
		{PID: 3, Program: "virt-broker", Start: "1000"}, {PID: 9, Program: "virt-broker", Start: "999"}, {PID: 1, Program: "pause", Start: "1"},
		{PID: 12, Program: "virt-broker", Start: "1001"},
	}
	if got := Oldest(all, "virt-broker"); got == nil || got.PID != 9 {
		t.Errorf("got %+v, want process 9", got)
	}
	if got := Oldest(all, "virt-handler"); got != nil {
		t.Errorf("got %+v, want none", got)
	}
}
