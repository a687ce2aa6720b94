// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package reaper starts processes and reaps all children of PID 1, including adopted ones. libvirt starts QEMU as a
// daemon, so that QEMU becomes a child of PID 1, and only PID 1 gets its exit status. libvirtd does not serve its first
// client while a QEMU that it has probed is a zombie.
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

// maxStatuses is how many exit statuses of adopted children are kept for Status.
const maxStatuses = 64

// Reaper reaps all children of this process. No other code in the process may wait for children: os/exec must not be
// used.
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

// Done returns a channel that is closed when the child has exited.
func (c *Child) Done() <-chan struct{} { return c.done }

// Status returns the child's exit status. Call it after Done is closed.
func (c *Child) Status() unix.WaitStatus { return c.end }

// Signal sends a signal to the child unless it has exited.
func (c *Child) Signal(signal syscall.Signal) error {
	select {
	case <-c.done:
		return nil
	default:
		return unix.Kill(c.PID, signal)
	}
}

// New returns a Reaper. Children are reaped by Run.
func New() *Reaper {
	r := &Reaper{
		children: map[int]*Child{}, adopted: map[int]unix.WaitStatus{},
		signals: make(chan os.Signal, 1),
	}
	signal.Notify(r.signals, unix.SIGCHLD)
	return r
}

// Run reaps children until the context is done.
func (r *Reaper) Run(ctx context.Context) {
	defer signal.Stop(r.signals)
	r.reap() // children that exited before the signal handler was installed
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.signals:
			r.reap()
		}
	}
}

// Start starts a program. It holds the lock meanwhile, so that the child cannot be reaped before it is recorded.
func (r *Reaper) Start(argv []string, attr *os.ProcAttr) (*Child, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	process, err := os.StartProcess(argv[0], argv, attr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	child := &Child{PID: process.Pid, done: make(chan struct{})}
	// The handle is only needed to wait for the process.
	_ = process.Release()
	r.children[child.PID] = child
	return child, nil
}

// Status returns the exit status of an adopted child that was reaped recently.
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
			return // No child has exited.
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
	if len(r.order) > maxStatuses {
		delete(r.adopted, r.order[0])
		r.order = r.order[1:]
	}
}

// Describe returns a description of an exit status.
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
