// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package network

import (
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

// The first thread of a process never ends: if it entered a namespace, the process would stay in it.
func TestFirstThreadIsNotUsed(t *testing.T) {
	var wait sync.WaitGroup
	// Many short goroutines run on every thread, including the first.
	for range 50 * runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			err := podprocess.OnDisposableThread(func() error {
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
