// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnDisposableThread calls a function on a thread that exits afterwards, so that no other goroutine runs in a namespace that the function
// enters.
func OnDisposableThread(do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		if unix.Gettid() != unix.Getpid() {
			result <- do()
			return
		}
		// The first thread of a process cannot exit. It would stay in the namespace, and /proc/self is about the first thread. While
		// this goroutine keeps it locked, another thread is used.
		defer runtime.UnlockOSThread()
		result <- OnDisposableThread(do)
	}()
	return <-result
}

// errOwnUserNamespace means that a Pod has root privileges over its mounts.
var errOwnUserNamespace = errors.New("the launcher Pod has a user namespace of its own")

// InMounts calls a function in the mount namespace of a process, given its directory in /proc. The function has no path of the node, and
// must use no path from the root directory, which is the process's. A Pod that could change its mounts as it likes is refused.
func InMounts(process *os.File, inside func() error) error {
	return OnDisposableThread(func() error {
		users, err := sharesNamespace(process, "user", "/proc/self")
		if err == nil && !users {
			err = errOwnUserNamespace
		}
		if err != nil {
			return err
		}
		mounts, err := OpenIn(process, "ns/mnt")
		if err != nil {
			return err
		}
		defer func() { _ = mounts.Close() }()
		// A thread that shares its root directory with others cannot enter.
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(int(mounts.Fd()), unix.CLONE_NEWNS)); err != nil {
			return fmt.Errorf("enter the mounts of the launcher Pod: %w", err)
		}
		return inside()
	})
}
