// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package oracle

import (
	"strings"
	"testing"
	"time"
)

const source, target = 100, 200

// see makes a timeline of events that are a millisecond apart.
func see(events ...Event) *Timeline {
	t := NewTimeline()
	for i, e := range events {
		e.At = time.Duration(i+1) * time.Millisecond
		t.See(e)
	}
	return t
}

func at(kind Kind, process int) Event { return Event{Kind: kind, Process: process} }

func TestTimeline(t *testing.T) {
	tests := map[string]struct {
		events []Event
		want   string
	}{
		"a guest that moves": {[]Event{
			at(Started, source), at(Wrote, source), at(Sending, source), at(Stopped, source), at(Wrote, source), at(Ended, source),
			at(Started, target), at(Wrote, target),
		}, ""},
		"a guest that stays": {[]Event{
			at(Started, source), at(Wrote, source), at(Stopped, source), at(Ended, target), at(Started, source), at(Wrote, source),
		}, ""},
		"a guest that is killed and starts again": {[]Event{
			at(Started, source), at(Wrote, source), at(Ended, source), at(Started, 300), at(Wrote, 300),
		}, ""},
		"the source goes on too early": {[]Event{
			at(Started, source), at(Stopped, source), at(Started, target), at(Started, source),
		}, "two guests execute"},
		"the target does not wait": {[]Event{
			at(Started, source), at(Sending, source), at(Started, target),
		}, "two guests execute"},
		"the source writes what it had kept": {[]Event{
			at(Started, source), at(Wrote, source), at(Stopped, source), at(Started, target), at(Wrote, source),
		}, "while QEMU 200 executes"},
		"both write, and stand still": {[]Event{
			at(Wrote, source), at(Wrote, target), at(Wrote, source),
		}, "two guests hold the disk"},
		"somebody else writes": {[]Event{
			at(Started, source), at(Wrote, source), at(Wrote, 999),
		}, "QEMU 999 writes"},
		"a hole in the trace": {[]Event{
			at(Started, source), {Kind: Lost, Detail: 7},
		}, "lost 7 events"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			failures := see(test.events...).Failures()
			switch {
			case test.want == "" && len(failures) > 0:
				t.Errorf("nothing is wrong, and it says %q", failures)
			case test.want != "" && (len(failures) == 0 || !strings.Contains(failures[0], test.want)):
				t.Errorf("it says %q, want %q", failures, test.want)
			}
		})
	}
}

func TestTimelineTellsWhoExecutes(t *testing.T) {
	timeline := see(at(Started, source), at(Wrote, source), at(Stopped, source), at(Started, target))
	if all := timeline.Executing(); len(all) != 1 || all[0] != target {
		t.Errorf("%v execute", all)
	}
	if process, when := timeline.Writer(); process != source || when != 2*time.Millisecond {
		t.Errorf("QEMU %d wrote at %s", process, when)
	}
	if again := see(at(Started, source), at(Started, target)); len(again.Failures()) != 1 || len(again.Failures()) != 0 {
		t.Error("a failure is told once")
	}
}
