// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package reaper starts processes and waits for every child that PID 1 has, its own and adopted ones. libvirt
// starts QEMU as a daemon, so QEMU becomes a child of PID 1 and only PID 1 learns how it ended; and while a
// QEMU that libvirt probed stays a zombie, libvirtd does not answer its first client.
package reaper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// remembered is how many adopted children's ends are kept for Status.
const remembered = 64

// Reaper waits for all children of this process. Nothing else in the process may wait: os/exec must not be used.
type Reaper struct {
	mu       sync.Mutex
	children map[int]*Child
	adopted  map[int]unix.WaitStatus
	order    []int
	signals  chan os.Signal
}

// Child is a process that Start started.
type Child struct {
	// PID is the process id.
	PID  int
	done chan struct{}
	end  unix.WaitStatus
}

// Done is closed when the child has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Status is how the child ended. Call it after Done is closed.
func (c *Child) Status() unix.WaitStatus { return c.end }

// Signal sends a signal to the child if it has not ended.
func (c *Child) Signal(signal syscall.Signal) error {
	select {
	case <-c.done:
		return nil
	default:
		return unix.Kill(c.PID, signal)
	}
}

// New takes over the waiting. Run must be called for anything to be reaped.
func New() *Reaper {
	r := &Reaper{
		children: map[int]*Child{}, adopted: map[int]unix.WaitStatus{},
		signals: make(chan os.Signal, 1),
	}
	signal.Notify(r.signals, unix.SIGCHLD)
	return r
}

// Run reaps until the context ends.
func (r *Reaper) Run(ctx context.Context) {
	defer signal.Stop(r.signals)
	r.reap() // children that were there before the signal handler
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.signals:
			r.reap()
		}
	}
}

// Start starts a program. The lock is held over the start, so that the reaper cannot meet the end of a child
// that it does not know yet.
func (r *Reaper) Start(argv []string, attr *os.ProcAttr) (*Child, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	process, err := os.StartProcess(argv[0], argv, attr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	child := &Child{PID: process.Pid, done: make(chan struct{})}
	// The handle would only serve to wait, which is done here.
	_ = process.Release()
	r.children[child.PID] = child
	return child, nil
}

// Status is how an adopted child ended, if it was reaped not long ago.
func (r *Reaper) Status(pid int) (unix.WaitStatus, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status, ok := r.adopted[pid]
	return status, ok
}

func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return // no children, or none that ended
		}
		if child, ok := r.children[pid]; ok {
			child.end = status
			delete(r.children, pid)
			close(child.done)
			continue
		}
		r.remember(pid, status)
	}
}

func (r *Reaper) remember(pid int, status unix.WaitStatus) {
	if _, again := r.adopted[pid]; !again {
		r.order = append(r.order, pid)
	}
	r.adopted[pid] = status
	if len(r.order) > remembered {
		delete(r.adopted, r.order[0])
		r.order = r.order[1:]
	}
}

// Describe puts the end of a process in words.
func Describe(status unix.WaitStatus) string {
	switch {
	case status.Signaled():
		return fmt.Sprintf("killed by signal %d (%s)", status.Signal(), unix.SignalName(status.Signal()))
	case status.Exited():
		return fmt.Sprintf("exited with code %d", status.ExitStatus())
	default:
		return fmt.Sprintf("ended with wait status %#x", uint32(status))
	}
}
