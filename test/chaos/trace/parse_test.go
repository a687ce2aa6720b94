// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package trace

import (
	"testing"
	"time"

	"github.com/vireo-project/vireo/test/chaos/oracle"
)

// The lines are from kernel 6.18.
func TestParse(t *testing.T) {
	const at = 61234*time.Second + 250001*time.Microsecond
	tests := map[string]struct {
		text string
		want *oracle.Event
	}{
		"CPUs started": {
			" qemu-system-x86-4242    (   4242) [001] ..... 61234.250001: state_0: (0x55d0c0a3fac0) running=1 state=9",
			&oracle.Event{At: at, Kind: oracle.Started, Process: 4242, Detail: 9},
		},
		"CPUs stopped by the migration thread": {
			" mig/src/main-4250    (   4242) [000] ..... 61234.250001: state_1: (0x55d0c0a3fac0) running=0 state=7",
			&oracle.Event{At: at, Kind: oracle.Stopped, Process: 4242, Detail: 7},
		},
		"memory sent": {
			" qemu-system-x86-4242    (   4242) [001] ..... 61234.250001: send_0: (0x55d0c0a3fac0)",
			&oracle.Event{At: at, Kind: oracle.Sending, Process: 4242},
		},
		"direct write": {
			"          worker-4260    (   4242) [001] ..... 61234.250001: iomap_iter: dev 254:0 ino 0xaa2210 pos 0x200 length 0x200 status 0 flags WRITE|DIRECT (0x11) ops 0xffffffff8245a750 caller __iomap_dio_rw+0x1fb/0x8d0",
			&oracle.Event{At: at, Kind: oracle.Wrote, Process: 4242},
		},
		"write by another process, with brackets in its name": {
			"   a - b [1] c-77    (     77) [000] ...1. 61234.250001: ext4_da_write_begin: dev 254,0 ino 42 pos 0 len 4096",
			&oracle.Event{At: at, Kind: oracle.Wrote, Process: 77},
		},
		"process exited": {
			" CPU 0/TCG-4270    (   4242) [001] ...1. 61234.250001: sched_process_exit: comm=CPU 0/TCG pid=4270 prio=120 group_dead=true",
			&oracle.Event{At: at, Kind: oracle.Ended, Process: 4242},
		},
		"dropped events": {"CPU:1 [LOST 17 EVENTS]", &oracle.Event{Kind: oracle.Lost, Detail: 17}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := threads{}.parse(test.text)
			if err != nil {
				t.Fatal(err)
			}
			if *got != *test.want {
				t.Errorf("parsed %+v, want %+v", got, test.want)
			}
		})
	}
	for _, bad := range []string{"", "something else", " qemu-4242 (4242) [001] ..... 61234.250001: state_0: (0x1) no=1"} {
		if got, err := (threads{}).parse(bad); err == nil {
			t.Errorf("%q is parsed as %+v", bad, got)
		}
	}
}

// A thread belongs to the process that created it, if the kernel's line has no process and /proc has no such thread.
func TestThreads(t *testing.T) {
	all := threads{}
	for _, text := range []string{
		" containerd-shim-4000000    (4000000) [000] ..... 1.000001: task_newtask: pid=4194242 comm=containerd-shim clone_flags=4111 oom_score_adj=0",
		" qemu-system-x86-4194242    (-------) [001] ..... 1.000002: task_newtask: pid=4194250 comm=qemu-system-x86 clone_flags=3d0f00 oom_score_adj=0",
		" a comm=b clone_-4194250    (-------) [001] ..... 1.000003: task_newtask: pid=4194251 comm=a clone_flags=x clone_flags=3d0f00 oom_score_adj=0",
	} {
		if event, err := all.parse(text); event != nil || err != nil {
			t.Fatalf("%q: %+v, %v", text, event, err)
		}
	}
	// An earlier process had this ID.
	const stale = " CPU 0/TCG-4194250    (4194250) [001] ...1. 1.000003: ext4_da_write_begin: dev 254,0 ino 1 pos 0 len 4096"
	if event, err := all.parse(stale); err != nil || event.Process != 4194242 {
		t.Errorf("%q: %+v, error %v, want process 4194242", stale, event, err)
	}
	const end = " CPU 0/TCG-4194250    (-------) [001] ...1. 1.000004: sched_process_exit: comm=CPU 0/TCG pid=4194250 prio=120 group_dead=true"
	if event, err := all.parse(end); err != nil || event.Process != 4194242 {
		t.Errorf("%q: %+v, error %v, want process 4194242", end, event, err)
	}
}
