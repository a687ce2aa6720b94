// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package oracle

import (
	"strings"
	"testing"
	"time"
)

const source, target = 100, 200

// timelineOf returns a timeline with events that are a millisecond apart.
func timelineOf(events ...Event) *Timeline {
	t := NewTimeline()
	for i, e := range events {
		e.At = time.Duration(i+1) * time.Millisecond
		t.Add(e)
	}
	return t
}

func at(kind Kind, process int) Event { return Event{Kind: kind, Process: process} }

func TestTimeline(t *testing.T) {
	tests := map[string]struct {
		events []Event
		want   string
	}{
		"migrated guest": {[]Event{
			at(Started, source), at(Wrote, source), at(Sending, source), at(Stopped, source), at(Wrote, source),
			at(Ended, source), at(Started, target), at(Wrote, target),
		}, ""},
		"guest that continues on the source": {[]Event{
			at(Started, source), at(Wrote, source), at(Stopped, source), at(Ended, target), at(Started, source),
			at(Wrote, source),
		}, ""},
		"killed and restarted guest": {[]Event{
			at(Started, source), at(Wrote, source), at(Ended, source), at(Started, 300), at(Wrote, 300),
		}, ""},
		"source continues while the target executes": {[]Event{
			at(Started, source), at(Stopped, source), at(Started, target), at(Started, source),
		}, "two guests execute"},
		"target starts before the source has stopped": {[]Event{
			at(Started, source), at(Sending, source), at(Started, target),
		}, "two guests execute"},
		"source writes while the target executes": {[]Event{
			at(Started, source), at(Wrote, source), at(Stopped, source), at(Started, target), at(Wrote, source),
		}, "while QEMU 200 executes"},
		"both write without executing": {[]Event{
			at(Wrote, source), at(Wrote, target), at(Wrote, source),
		}, "two guests write the disk"},
		"a later QEMU has the process ID of an earlier one": {[]Event{
			at(Started, source), at(Wrote, source), at(Ended, source), at(Started, target), at(Wrote, target),
			at(Stopped, target), at(Ended, target), at(Started, source), at(Wrote, source),
		}, ""},
		"an earlier writer ends after its successor has written": {[]Event{
			at(Wrote, source), at(Wrote, target), at(Ended, source), at(Ended, target), at(Wrote, source),
		}, ""},
		"an earlier writer writes after others have ended": {[]Event{
			at(Wrote, source), at(Wrote, target), at(Ended, target), at(Wrote, 300), at(Wrote, source),
		}, "two guests write the disk"},
		"another process writes": {[]Event{
			at(Started, source), at(Wrote, source), at(Wrote, 999),
		}, "QEMU 999 writes"},
		"dropped events": {[]Event{
			at(Started, source), {Kind: Lost, Detail: 7},
		}, "dropped 7 events"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			failures := timelineOf(test.events...).Failures()
			switch {
			case test.want == "" && len(failures) > 0:
				t.Errorf("failures %q, want none", failures)
			case test.want != "" && (len(failures) == 0 || !strings.Contains(failures[0], test.want)):
				t.Errorf("failures %q, want %q", failures, test.want)
			}
		})
	}
}

func TestTimelineState(t *testing.T) {
	timeline := timelineOf(at(Started, source), at(Wrote, source), at(Stopped, source), at(Started, target))
	if all := timeline.Executing(); len(all) != 1 || all[0] != target {
		t.Errorf("%v execute, want only the target", all)
	}
	if process, when := timeline.Writer(); process != source || when != 2*time.Millisecond {
		t.Errorf("QEMU %d wrote last at %s, want the source at 2ms", process, when)
	}
	if again := timelineOf(at(Started, source), at(Started, target)); len(again.Failures()) != 1 ||
		len(again.Failures()) != 0 {
		t.Error("a failure is not returned exactly once")
	}
}
