// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virtctl is what people run to work with virtual machines. As kubectl-virt on the PATH it is `kubectl virt`.
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
	context.AfterFunc(ctx, stop) // A second Ctrl+C ends what does not heed the first.
	return virtctl.Run(ctx, os.Args)
}
