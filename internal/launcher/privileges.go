// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// SetNoNewPrivs ensures that this process and its children never gain privileges, whatever programs they run. A launcher's
// container has this setting from its manifest. The container that reads the node's capabilities is privileged, so that it can
// open /dev/kvm, and its manifest must not have the setting. Call it first: it executes the program again.
func SetNoNewPrivs() error {
	given, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read no_new_privs: %w", err)
	}
	if given == 1 {
		return nil
	}
	// It is an attribute of a thread, which is preserved if the thread executes a program.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if err := unix.Exec("/proc/self/exe", os.Args, os.Environ()); err != nil {
		return fmt.Errorf("execute the program again with no_new_privs: %w", err)
	}
	return nil
}
