// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package trace

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/test/chaos/oracle"
)

// line is an event as trace_pipe prints it with record-tgid: "command-thread (process) [CPU] flags time: event:
// fields".
var line = regexp.MustCompile(`^.+-(\d+)\s+(?:\(\s*(\d+|-+)\)\s+)?\[\d+\]\s+\S+\s+(\d+)\.(\d{6}): (\w+): (.*)$`)

var lost = regexp.MustCompile(`\[LOST (\d+) EVENTS\]`)

// newThread is the event of a new thread or process.
const newThread = "task_newtask"

// threads maps the threads that were created since the trace began to their processes. The process that the kernel
// prints may be missing or stale: it is recorded when a thread is scheduled, which may be after the event is read, and
// thread IDs are reused. QEMU's threads are short-lived.
type threads map[int]int

// parse parses a line. It returns nil for the event of a new thread.
func (t threads) parse(text string) (*oracle.Event, error) {
	if found := lost.FindStringSubmatch(text); found != nil {
		n, err := strconv.Atoi(found[1])
		return &oracle.Event{Kind: oracle.Lost, Detail: n}, err
	}
	found := line.FindStringSubmatch(text)
	if found == nil {
		return nil, fmt.Errorf("the kernel's trace has a line in an unknown format: %.200q", text)
	}
	at, err := moment(found[3], found[4])
	if err != nil {
		return nil, err
	}
	process, err := t.processOf(found[1], found[2])
	if err != nil {
		return nil, err
	}
	if found[5] == newThread {
		return nil, t.add(process, found[6])
	}
	event := &oracle.Event{At: at, Process: process}
	if event.Kind, event.Detail, err = classify(found[5], found[6]); err != nil {
		return nil, err
	}
	return event, nil
}

func moment(seconds, micro string) (time.Duration, error) {
	s, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return 0, err
	}
	us, err := strconv.ParseInt(micro, 10, 64)
	return time.Duration(s)*time.Second + time.Duration(us)*time.Microsecond, err
}

// add parses "pid=4270 comm=qemu-system-x86 clone_flags=3d0f00 oom_score_adj=0" of a process that creates a thread or
// another process.
func (t threads) add(process int, fields string) error {
	var id int
	var flags uint64
	// The name between the two fields may contain anything.
	_, err := fmt.Sscanf(fields, "pid=%d", &id)
	if at := strings.LastIndex(fields, " clone_flags="); err == nil {
		_, err = fmt.Sscanf(fields[max(at, 0):], " clone_flags=%x", &flags)
	}
	if err != nil {
		return fmt.Errorf("parse the fields %q of a new thread: %w", fields, err)
	}
	t[id] = id
	if flags&unix.CLONE_THREAD != 0 {
		t[id] = process
	}
	return nil
}

// processOf returns the process of a thread. The arguments are as the kernel prints them.
func (t threads) processOf(thread, process string) (int, error) {
	id, err := strconv.Atoi(thread)
	if err != nil {
		return 0, err
	}
	if process, known := t[id]; known {
		return process, nil
	}
	// The thread is older than the trace.
	if of, err := strconv.Atoi(process); err == nil {
		return of, nil
	}
	status, err := os.ReadFile("/proc/" + thread + "/status")
	if err == nil {
		if _, rest, ok := strings.Cut(string(status), "\nTgid:"); ok {
			return strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
		}
	}
	return id, nil
}

func classify(event, fields string) (oracle.Kind, int, error) {
	switch {
	case strings.HasPrefix(event, "state_"):
		running, state, err := stateOf(fields)
		if running {
			return oracle.Started, state, err
		}
		return oracle.Stopped, state, err
	case strings.HasPrefix(event, "send_"):
		return oracle.Sending, 0, nil
	case event == "sched_process_exit":
		return oracle.Ended, 0, nil
	default:
		return oracle.Wrote, 0, nil
	}
}

// stateOf parses "(0x55d0c0a3f040) running=1 state=9".
func stateOf(fields string) (running bool, state int, err error) {
	var on int
	_, rest, _ := strings.Cut(fields, ") ")
	if _, err := fmt.Sscanf(rest, "running=%d state=%d", &on, &state); err != nil {
		return false, 0, fmt.Errorf("parse the state of a QEMU in %q: %w", fields, err)
	}
	return on != 0, state, nil
}
