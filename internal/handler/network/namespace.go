// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Namespace is a Pod's network namespace. The open descriptor keeps it the same namespace even if the process
// that it was found by ends and its id is used again.
type Namespace struct{ file *os.File }

// ErrNodesNamespace means that a namespace is no Pod's: what is made there would take the node off the network.
var ErrNodesNamespace = errors.New("it is the node's own network namespace, or the agent's: a launcher Pod has one of its own")

// Processes that no launcher Pod shares its network with: the node's first one, which the agent sees because it is in the node's process
// namespace, and the agent itself.
var otherProcesses = []string{"/proc/1", "/proc/self"}

// OpenNamespaceFile opens a network namespace by a path such as /proc/<pid>/ns/net. It needs CAP_SYS_PTRACE. The error is
// ErrNodesNamespace for that of the node, and for that of the agent's own Pod. If it cannot be told whether it is one of them, it is not
// opened.
func OpenNamespaceFile(path string) (*Namespace, error) {
	return openNamespace(path, otherProcesses)
}

// openNamespace opens a network namespace, unless it is that of one of the processes.
func openNamespace(path string, others []string) (*Namespace, error) {
	file, err := os.Open(path) //nolint:gosec // a path in /proc made of a process id
	if err != nil {
		return nil, fmt.Errorf("open the Pod's network namespace: %w", err)
	}
	namespace := &Namespace{file: file}
	for _, process := range others {
		same, err := namespace.isOf(process)
		if err == nil && same {
			err = ErrNodesNamespace
		}
		if err != nil {
			_ = file.Close()
			return nil, fmt.Errorf("open the Pod's network namespace: %w", err)
		}
	}
	return namespace, nil
}

// isOf says that the namespace is that of a process, which is given as its directory in /proc.
func (n *Namespace) isOf(process string) (bool, error) {
	var own, other unix.Stat_t
	if err := unix.Fstat(int(n.file.Fd()), &own); err != nil {
		return false, err
	}
	switch err := unix.Stat(process+"/ns/net", &other); {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		// A security module may keep the namespaces of the node's own processes from everybody.
		return n.hasTableOf(process)
	case err != nil:
		return false, fmt.Errorf("compare it with that of %s: %w", process, err)
	}
	return own.Ino == other.Ino && own.Dev == other.Dev, nil
}

// hasTableOf compares what every process may look at: the table of interfaces is one file for each namespace, by whichever process it is
// found. Source: Linux fs/proc/proc_net.c (proc_net_ns_init) and generic.c (proc_alloc_inum).
func (n *Namespace) hasTableOf(process string) (bool, error) {
	var own, other unix.Stat_t
	err := n.Do(func() error { return unix.Stat("/proc/thread-self/net/dev", &own) })
	if err := errors.Join(err, unix.Stat(process+"/net/dev", &other)); err != nil {
		return false, fmt.Errorf("compare it with that of %s: %w", process, err)
	}
	return own.Ino == other.Ino && own.Dev == other.Dev, nil
}

// Close lets go of the namespace.
func (n *Namespace) Close() error { return n.file.Close() }

// Do runs a function inside of the namespace, on a thread that ends with it: should anything go wrong with the
// way back, no other goroutine ever finds itself in a Pod.
func (n *Namespace) Do(inside func() error) error {
	return onSpentThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the Pod's network namespace: %w", err)
		}
		return inside()
	})
}

// onSpentThread runs a function on a thread that ends with it.
func onSpentThread(do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		if unix.Gettid() != unix.Getpid() {
			result <- do()
			return
		}
		// The first thread of a process cannot end. It would stay in the Pod's namespace for ever, and /proc/self, by which
		// we tell that namespace from the node's, is about the first thread. While it is held here, another one is taken.
		defer runtime.UnlockOSThread()
		result <- onSpentThread(do)
	}()
	return <-result
}
