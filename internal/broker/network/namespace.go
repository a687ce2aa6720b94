// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/brokerapi"
)

// Namespace is a Pod's network namespace. It is an open descriptor, so that it stays the same namespace even if the process through
// which it was opened exits and its id is reused.
type Namespace struct{ file *os.File }

// ErrNodesNamespace means that a namespace is not a Pod's: changes there would disconnect the node from its network.
var ErrNodesNamespace error = &brokerapi.Error{
	Code:    brokerapi.CodeNodesNetwork,
	Message: "it is the node's own network namespace, or the broker's: a launcher Pod has one of its own",
}

// nodeProcesses are processes whose network no launcher Pod may share: the node's first one (the broker is in the node's process
// namespace), and the broker itself.
var nodeProcesses = []string{"/proc/1", "/proc/self"}

// OpenNamespaceFile opens a network namespace by a path such as /proc/<pid>/ns/net. It needs CAP_SYS_PTRACE. The error wraps
// ErrNodesNamespace if it is the node's or the broker's own, and it is another error if they cannot be compared.
func OpenNamespaceFile(path string) (*Namespace, error) {
	file, err := os.Open(path) //nolint:gosec // a path in /proc made of a process id
	if err != nil {
		return nil, fmt.Errorf("open the Pod's network namespace: %w", err)
	}
	namespace := &Namespace{file: file}
	for _, process := range nodeProcesses {
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

// isOf reports whether the namespace is that of a process, given its directory in /proc.
func (n *Namespace) isOf(process string) (bool, error) {
	var own, other unix.Stat_t
	if err := unix.Fstat(int(n.file.Fd()), &own); err != nil {
		return false, err
	}
	switch err := unix.Stat(process+"/ns/net", &other); {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		// A security module may deny access to the namespaces of the node's processes.
		return n.hasTableOf(process)
	case err != nil:
		return false, fmt.Errorf("compare it with that of %s: %w", process, err)
	}
	return own.Ino == other.Ino && own.Dev == other.Dev, nil
}

// hasTableOf reports whether the namespace is that of a process by comparing files that every process may read: the table of
// interfaces has one inode for each namespace. Source: Linux fs/proc/proc_net.c (proc_net_ns_init) and generic.c
// (proc_alloc_inum).
func (n *Namespace) hasTableOf(process string) (bool, error) {
	var own, other unix.Stat_t
	err := n.Do(func() error { return unix.Stat("/proc/thread-self/net/dev", &own) })
	if err := errors.Join(err, unix.Stat(process+"/net/dev", &other)); err != nil {
		return false, fmt.Errorf("compare it with that of %s: %w", process, err)
	}
	return own.Ino == other.Ino && own.Dev == other.Dev, nil
}

// Close closes the descriptor.
func (n *Namespace) Close() error { return n.file.Close() }

// Do calls a function in the namespace, on a thread that is not used again: no other goroutine ever runs in a Pod's namespace.
func (n *Namespace) Do(inside func() error) error {
	return podprocess.OnDisposableThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the Pod's network namespace: %w", err)
		}
		return inside()
	})
}
