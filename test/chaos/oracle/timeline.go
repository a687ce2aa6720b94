// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package oracle decides whether a run of the chaos test was correct, from facts that do not come from Vireo: the kernel's
// trace of the VM's QEMUs, and what the guest wrote to its disk.
package oracle

import (
	"fmt"
	"time"
)

// Kind is what an event is about.
type Kind uint8

// The kinds.
const (
	// Started: a QEMU is about to let its guest's CPUs run.
	Started Kind = iota + 1
	// Stopped: a QEMU has stopped its guest's CPUs.
	Stopped
	// Sending: a QEMU begins to send the guest's memory.
	Sending
	// Ended: the last thread of a QEMU has ended.
	Ended
	// Wrote: a process writes to the VM's disk.
	Wrote
	// Lost: the kernel had no room for events. Nothing can be said about that time.
	Lost
)

// Event is something that the kernel has seen. At is its monotonic clock.
type Event struct {
	At   time.Duration
	Kind Kind
	// Process is the id of the QEMU's process.
	Process int
	// Detail is the number of QEMU's run state of Started and Stopped, and of events that are lost.
	Detail int
}

// Timeline is what the QEMUs of one VM have done. It takes the events in the order of the kernel's clock.
type Timeline struct {
	// executing are the QEMUs whose guest's CPUs run, and since when.
	executing map[int]time.Duration
	// writer is the one that wrote last, and lastWrite when. Those who wrote before it must not write again.
	writer    int
	lastWrite time.Duration
	retired   map[int]int
	failures  []string
}

// NewTimeline is a timeline of a VM that has no QEMU yet.
func NewTimeline() *Timeline {
	return &Timeline{executing: map[int]time.Duration{}, retired: map[int]int{}}
}

// See takes the next event.
func (t *Timeline) See(e Event) {
	switch e.Kind {
	case Started:
		for other, since := range t.executing {
			if other != e.Process {
				t.fail("two guests execute: QEMU %d starts at %s, QEMU %d has been executing since %s", e.Process, stamp(e.At), other, stamp(since))
			}
		}
		t.executing[e.Process] = e.At
	case Stopped, Ended:
		delete(t.executing, e.Process)
	case Wrote:
		t.wrote(e)
	case Lost:
		t.fail("the kernel lost %d events before %s: nothing is proven", e.Detail, stamp(e.At))
	case Sending:
	}
}

func (t *Timeline) wrote(e Event) {
	if successor, is := t.retired[e.Process]; is {
		t.fail("two guests hold the disk: QEMU %d writes at %s, after QEMU %d has written", e.Process, stamp(e.At), successor)
	}
	for other, since := range t.executing {
		if other != e.Process {
			t.fail("QEMU %d writes at %s, while QEMU %d executes, since %s", e.Process, stamp(e.At), other, stamp(since))
		}
	}
	if t.writer != 0 && t.writer != e.Process {
		t.retired[t.writer] = e.Process
	}
	t.writer, t.lastWrite = e.Process, e.At
}

// manyFailures bounds what is kept: after the first, the rest only repeats it.
const manyFailures = 20

func (t *Timeline) fail(format string, args ...any) {
	if len(t.failures) < manyFailures {
		t.failures = append(t.failures, fmt.Sprintf(format, args...))
	}
}

func stamp(at time.Duration) string { return fmt.Sprintf("%.6f", at.Seconds()) }

// Failures are what must not have been, and are forgotten with that.
func (t *Timeline) Failures() []string {
	failures := t.failures
	t.failures = nil
	return failures
}

// Executing are the QEMUs whose guest's CPUs run.
func (t *Timeline) Executing() []int {
	all := make([]int, 0, len(t.executing))
	for process := range t.executing {
		all = append(all, process)
	}
	return all
}

// Writer is the QEMU that wrote last, and when that was.
func (t *Timeline) Writer() (process int, at time.Duration) { return t.writer, t.lastWrite }
