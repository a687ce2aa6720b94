// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// GiveUpPrivileges makes sure that this process and all that it starts never get more privileges than it has, whatever programs they run.
// A launcher's container has that from its manifest. The one that asks what guests can have on a node is privileged, so that it can open
// /dev/kvm, and the manifest of such a container cannot ask for it. It is the process's first act: the process begins once more.
func GiveUpPrivileges() error {
	given, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("find out whether privileges can be gained: %w", err)
	}
	if given == 1 {
		return nil
	}
	// It is a property of a thread, which a program keeps that the thread becomes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up gaining privileges: %w", err)
	}
	if err := unix.Exec("/proc/self/exe", os.Args, os.Environ()); err != nil {
		return fmt.Errorf("begin once more without gaining privileges: %w", err)
	}
	return nil
}
