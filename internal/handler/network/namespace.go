// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Namespace is a Pod's network namespace. The open descriptor keeps it the same namespace even if the process
// that it was found by ends and its id is used again.
type Namespace struct{ file *os.File }

// OpenNamespace opens the network namespace of a process. It needs CAP_SYS_PTRACE and to see the process.
func OpenNamespace(pid int) (*Namespace, error) {
	return OpenNamespaceFile("/proc/" + strconv.Itoa(pid) + "/ns/net")
}

// OpenNamespaceFile opens a network namespace by a path such as /proc/<pid>/ns/net. It refuses the caller's
// own namespace, which is the node's: what is made here would take the node off the network.
func OpenNamespaceFile(path string) (*Namespace, error) {
	file, err := os.Open(path) //nolint:gosec // a path in /proc made of a process id
	if err != nil {
		return nil, fmt.Errorf("open the Pod's network namespace: %w", err)
	}
	var own, other unix.Stat_t
	err = errors.Join(unix.Stat("/proc/self/ns/net", &own), unix.Fstat(int(file.Fd()), &other))
	if err == nil && own.Ino == other.Ino && own.Dev == other.Dev {
		err = errors.New("it is the node's own")
	}
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("open the Pod's network namespace: %w", err)
	}
	return &Namespace{file: file}, nil
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
