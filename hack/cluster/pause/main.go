// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command pause sleeps until it is terminated. It is the sandbox container of
// every Pod of the local cluster, and the process that keeps a node's
// namespaces alive.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		reap()
	}
}

// reap reaps orphaned processes of a shared process namespace.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 || err != nil {
			return
		}
	}
}
