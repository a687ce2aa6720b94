// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package selftest checks that the chaos test detects the failure it is made for: two real QEMUs that execute at the
// same time and write one disk.
package selftest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/test/chaos/oracle"
	"github.com/vireo-project/vireo/test/chaos/trace"
)

// writer is a boot sector that writes the second sector of the disk in a loop, with BIOS calls:
//
//	xor ax, ax; mov es, ax; mov ds, ax
//	again: mov ax, 0301h; mov bx, 7c00h; mov cx, 2; mov dx, 80h; int 13h; jmp again
var writer = []byte{
	0x31, 0xc0, 0x8e, 0xc0, 0x8e, 0xd8, 0xb8, 0x01, 0x03, 0xbb, 0x00, 0x7c, 0xb9, 0x02, 0x00, 0xba, 0x80, 0x00, 0xcd, 0x13,
	0xeb, 0xf0,
}

const (
	sector   = 512
	diskSize = 1 << 20
	// settle is how long each state lasts: a running QEMU writes some hundred times in it.
	settle   = 400 * time.Millisecond
	patience = 20 * time.Second
)

// Run first runs two QEMUs on one disk one after the other, which must not be reported, and then continues the first
// while the second runs, which must be reported by the checks of execution and of writers. QEMU's own disk lock, which
// would prevent this, is off. Root is a root file system with QEMU, and directory a directory on the file system of the
// volumes.
func Run(root, directory string) (err error) {
	disk, err := makeDisk(directory)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(disk)) }()
	tracer, err := trace.Start([]string{filepath.Join(root, program)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tracer.Stop()) }()
	if err := tracer.Watch(disk); err != nil {
		return err
	}
	first, err := start(root, disk)
	if err != nil {
		return err
	}
	defer first.kill()
	second, err := start(root, disk)
	if err != nil {
		return err
	}
	defer second.kill()
	w := &watched{trace: tracer, timeline: oracle.NewTimeline(), own: map[int]bool{first.pid(): true, second.pid(): true},
		wrote: map[int]int{}}
	return w.run(first, second)
}

// watched is what was traced of the two QEMUs.
type watched struct {
	trace    *trace.Trace
	timeline *oracle.Timeline
	own      map[int]bool
	wrote    map[int]int
}

func (w *watched) run(first, second *qemu) error {
	for _, step := range []func() error{
		func() error { return first.execute("cont") },
		func() error { return w.awaitWrites(first) },
		func() error { return first.execute("stop") },
		func() error { return second.execute("cont") },
		func() error { return w.awaitWrites(second) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if failures := w.timeline.Failures(); len(failures) > 0 {
		return fmt.Errorf("two QEMUs that ran one after the other are reported: %s", strings.Join(failures, "; "))
	}
	if err := first.execute("cont"); err != nil {
		return err
	}
	deadline, executes, writes := time.After(patience), false, false
	for !executes || !writes {
		select {
		case e, open := <-w.trace.Events():
			if !open {
				return errors.Join(errors.New("the kernel's trace has ended"), w.trace.Err())
			}
			w.add(e)
		case <-deadline:
			return fmt.Errorf("two QEMUs execute and write to one disk: execution detected %t, writes detected %t", executes,
				writes)
		}
		for _, failure := range w.timeline.Failures() {
			executes = executes || strings.HasPrefix(failure, "two guests execute")
			writes = writes || strings.HasPrefix(failure, "two guests write the disk")
		}
	}
	return nil
}

func (w *watched) add(e oracle.Event) {
	if !w.own[e.Process] && e.Kind != oracle.Lost {
		return
	}
	if e.Kind == oracle.Wrote {
		w.wrote[e.Process]++
	}
	w.timeline.Add(e)
}

// awaitWrites waits for the settle time, and longer if the trace has no write of a QEMU yet.
func (w *watched) awaitWrites(q *qemu) error {
	deadline, enough := time.After(patience), time.After(settle)
	for {
		select {
		case e, open := <-w.trace.Events():
			if !open {
				return errors.Join(errors.New("the kernel's trace has ended"), w.trace.Err())
			}
			w.add(e)
		case <-enough:
			if w.wrote[q.pid()] > 0 {
				return nil
			}
			enough = time.After(settle)
		case <-deadline:
			return fmt.Errorf("the trace contains no write of a running QEMU: %s", q.output())
		}
	}
}

func makeDisk(directory string) (string, error) {
	file, err := os.CreateTemp(directory, "chaos-self-test-")
	if err != nil {
		return "", err
	}
	boot := make([]byte, sector)
	copy(boot, writer)
	boot[sector-2], boot[sector-1] = 0x55, 0xaa
	_, err = file.Write(boot)
	return file.Name(), errors.Join(err, file.Truncate(diskSize), file.Sync(), file.Close())
}

func openDirect(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0) }
