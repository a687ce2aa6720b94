// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package oracle decides whether a run of the chaos test was correct, from facts that do not come from Vireo: the
// kernel's trace of the VM's QEMUs, and what the guest wrote to its disk.
package oracle

import (
	"fmt"
	"time"
)

// Kind is the kind of an event.
type Kind uint8

// The kinds.
const (
	// Started: a QEMU is about to start the CPUs of its guest.
	Started Kind = iota + 1
	// Stopped: a QEMU has stopped the CPUs of its guest.
	Stopped
	// Sending: a QEMU begins to send the memory of its guest.
	Sending
	// Ended: the last thread of a QEMU has ended.
	Ended
	// Wrote: a process writes to the VM's disk.
	Wrote
	// Lost: the kernel dropped events because its buffer was full.
	Lost
)

// Event is an event of the kernel's trace. At is the kernel's monotonic clock.
type Event struct {
	At   time.Duration
	Kind Kind
	// Process is the ID of the process.
	Process int
	// Detail is QEMU's RunState for Started and Stopped, and the number of dropped events for Lost.
	Detail int
}

// Timeline checks the events of the QEMUs of one VM. They must be added in the order of the kernel's clock.
type Timeline struct {
	// executing are the QEMUs whose CPUs run, with the time of their start.
	executing map[int]time.Duration
	// writer is the QEMU that wrote last, at lastWrite. retired are earlier writers that have not ended, which must not
	// write again, with their successors.
	writer      int
	writerEnded bool
	lastWrite   time.Duration
	retired     map[int]int
	failures    []string
}

// NewTimeline is a timeline of a VM that has no QEMU yet.
func NewTimeline() *Timeline {
	return &Timeline{executing: map[int]time.Duration{}, retired: map[int]int{}}
}

// Add adds the next event.
func (t *Timeline) Add(e Event) {
	switch e.Kind {
	case Started:
		for other, since := range t.executing {
			if other != e.Process {
				t.fail("two guests execute: QEMU %d starts at %s, and QEMU %d executes since %s", e.Process, stamp(e.At), other,
					stamp(since))
			}
		}
		t.executing[e.Process] = e.At
	case Stopped:
		delete(t.executing, e.Process)
	case Ended:
		// The kernel gives the ID to another process later.
		delete(t.executing, e.Process)
		delete(t.retired, e.Process)
		t.writerEnded = t.writerEnded || e.Process == t.writer
	case Wrote:
		t.wrote(e)
	case Lost:
		t.fail("the kernel dropped %d events before %s", e.Detail, stamp(e.At))
	case Sending:
	}
}

func (t *Timeline) wrote(e Event) {
	if successor, is := t.retired[e.Process]; is {
		t.fail("two guests write the disk: QEMU %d writes at %s, after QEMU %d has written", e.Process, stamp(e.At),
			successor)
	}
	for other, since := range t.executing {
		if other != e.Process {
			t.fail("QEMU %d writes at %s, while QEMU %d executes, since %s", e.Process, stamp(e.At), other, stamp(since))
		}
	}
	if t.writer != 0 && t.writer != e.Process && !t.writerEnded {
		t.retired[t.writer] = e.Process
	}
	t.writer, t.lastWrite, t.writerEnded = e.Process, e.At, false
}

// maxFailures bounds the failures that are kept: later ones are usually consequences of the first.
const maxFailures = 20

func (t *Timeline) fail(format string, args ...any) {
	if len(t.failures) < maxFailures {
		t.failures = append(t.failures, fmt.Sprintf(format, args...))
	}
}

func stamp(at time.Duration) string { return fmt.Sprintf("%.6f", at.Seconds()) }

// Failures returns the failures since the last call.
func (t *Timeline) Failures() []string {
	failures := t.failures
	t.failures = nil
	return failures
}

// Executing returns the QEMUs whose CPUs run.
func (t *Timeline) Executing() []int {
	all := make([]int, 0, len(t.executing))
	for process := range t.executing {
		all = append(all, process)
	}
	return all
}

// Writer returns the QEMU that wrote last, and when.
func (t *Timeline) Writer() (process int, at time.Duration) { return t.writer, t.lastWrite }
