// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package selftest checks that the chaos test detects the failure it is made for: two real QEMUs that execute at the same time and write
// one disk.
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

// writer is a boot sector that writes the disk's second sector again and again, by the BIOS:
//
//	xor ax, ax; mov es, ax; mov ds, ax
//	again: mov ax, 0301h; mov bx, 7c00h; mov cx, 2; mov dx, 80h; int 13h; jmp again
var writer = []byte{
	0x31, 0xc0, 0x8e, 0xc0, 0x8e, 0xd8, 0xb8, 0x01, 0x03, 0xbb, 0x00, 0x7c, 0xb9, 0x02, 0x00, 0xba, 0x80, 0x00, 0xcd, 0x13, 0xeb, 0xf0,
}

const (
	sector   = 512
	diskSize = 1 << 20
	// settle is how long each state is left as it is: a QEMU that runs writes some hundred times meanwhile.
	settle   = 400 * time.Millisecond
	patience = 20 * time.Second
)

// Run hands a disk over from one QEMU to another as it should be, of which nothing may be noticed, and then lets the first go on,
// which must be: by what executes, and by what writes. QEMU's own lock of the disk, which would refuse it, is off. Root is a root
// file system with QEMU, and directory one on the file system of the volumes.
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
	here, err := start(root, disk)
	if err != nil {
		return err
	}
	defer here.kill()
	there, err := start(root, disk)
	if err != nil {
		return err
	}
	defer there.kill()
	w := &watched{trace: tracer, timeline: oracle.NewTimeline(), mine: map[int]bool{here.pid(): true, there.pid(): true}, wrote: map[int]int{}}
	return w.judge(here, there)
}

// watched is what was traced of the two.
type watched struct {
	trace    *trace.Trace
	timeline *oracle.Timeline
	mine     map[int]bool
	wrote    map[int]int
}

func (w *watched) judge(here, there *machine) error {
	for _, step := range []func() error{
		func() error { return here.tell("cont") },
		func() error { return w.until(here) },
		func() error { return here.tell("stop") },
		func() error { return there.tell("cont") },
		func() error { return w.until(there) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	if failures := w.timeline.Failures(); len(failures) > 0 {
		return fmt.Errorf("a disk that was handed over as it should be is reported: %s", strings.Join(failures, "; "))
	}
	if err := here.tell("cont"); err != nil {
		return err
	}
	deadline, executes, writes := time.After(patience), false, false
	for !executes || !writes {
		select {
		case e, open := <-w.trace.Events():
			if !open {
				return errors.Join(errors.New("the trace has ended"), w.trace.Err())
			}
			w.see(e)
		case <-deadline:
			return fmt.Errorf("two QEMUs execute and write one disk, and it is not noticed: execution %t, writes %t", executes, writes)
		}
		for _, failure := range w.timeline.Failures() {
			executes = executes || strings.HasPrefix(failure, "two guests execute")
			writes = writes || strings.HasPrefix(failure, "two guests hold the disk")
		}
	}
	return nil
}

func (w *watched) see(e oracle.Event) {
	if !w.mine[e.Process] && e.Kind != oracle.Lost {
		return
	}
	if e.Kind == oracle.Wrote {
		w.wrote[e.Process]++
	}
	w.timeline.See(e)
}

// until waits until a QEMU has been seen to write, and a moment longer.
func (w *watched) until(m *machine) error {
	deadline, enough := time.After(patience), time.After(settle)
	for {
		select {
		case e, open := <-w.trace.Events():
			if !open {
				return errors.Join(errors.New("the trace has ended"), w.trace.Err())
			}
			w.see(e)
		case <-enough:
			if w.wrote[m.pid()] > 0 {
				return nil
			}
			enough = time.After(settle)
		case <-deadline:
			return fmt.Errorf("a QEMU that writes its disk is not seen to: %s", m.output())
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
