// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virtctl is the command line for virtual machines. Installed as kubectl-virt, it is also `kubectl virt`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/vireo-project/vireo/internal/virtctl"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // A second Ctrl+C terminates the program.
	return virtctl.Run(ctx, os.Args)
}
