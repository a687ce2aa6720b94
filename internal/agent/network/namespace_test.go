// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// The first thread of a process never ends, so that a namespace entered there would be the process's own from then on.
func TestTheFirstThreadIsNotSpent(t *testing.T) {
	var wait sync.WaitGroup
	// Goroutines that come and go in numbers get every thread there is, the first included.
	for range 50 * runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			err := onDisposableThread(func() error {
				if unix.Gettid() == unix.Getpid() {
					t.Error("ran on the first thread")
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}
