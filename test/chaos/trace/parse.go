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

	"github.com/vireo-project/vireo/test/chaos/oracle"
)

// line is an event as trace_pipe prints it with record-tgid: "command-thread (process) [CPU] flags time: event: fields".
var line = regexp.MustCompile(`^.+-(\d+)\s+(?:\(\s*(\d+|-+)\)\s+)?\[\d+\]\s+\S+\s+(\d+)\.(\d{6}): (\w+): (.*)$`)

var lost = regexp.MustCompile(`\[LOST (\d+) EVENTS\]`)

// parse reads a line.
func parse(text string) (*oracle.Event, error) {
	if found := lost.FindStringSubmatch(text); found != nil {
		n, err := strconv.Atoi(found[1])
		return &oracle.Event{Kind: oracle.Lost, Detail: n}, err
	}
	found := line.FindStringSubmatch(text)
	if found == nil {
		return nil, fmt.Errorf("the kernel's trace has a line that is not understood: %.200q", text)
	}
	at, err := moment(found[3], found[4])
	if err != nil {
		return nil, err
	}
	event := &oracle.Event{At: at}
	if event.Kind, event.Detail, err = classify(found[5], found[6]); err != nil {
		return nil, err
	}
	event.Process, err = processOf(found[1], found[2])
	return event, err
}

func moment(seconds, micro string) (time.Duration, error) {
	s, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return 0, err
	}
	us, err := strconv.ParseInt(micro, 10, 64)
	return time.Duration(s)*time.Second + time.Duration(us)*time.Microsecond, err
}

// processOf is the process of a thread. The kernel knows it if it has seen the thread being scheduled while it was told to remember.
func processOf(thread, process string) (int, error) {
	if id, err := strconv.Atoi(process); err == nil {
		return id, nil
	}
	status, err := os.ReadFile("/proc/" + thread + "/status")
	if err == nil {
		if _, rest, ok := strings.Cut(string(status), "\nTgid:"); ok {
			return strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
		}
	}
	// It has ended, which single threads of QEMU do not do by themselves in what is traced here.
	return strconv.Atoi(thread)
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

// stateOf reads "(0x55d0c0a3f040) running=1 state=9".
func stateOf(fields string) (running bool, state int, err error) {
	var on int
	_, rest, _ := strings.Cut(fields, ") ")
	if _, err := fmt.Sscanf(rest, "running=%d state=%d", &on, &state); err != nil {
		return false, 0, fmt.Errorf("read the state of a QEMU from %q: %w", fields, err)
	}
	return on != 0, state, nil
}
