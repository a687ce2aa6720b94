// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-launcher is PID 1 of each VM's Pod.
package main

import (
	"os"
	"runtime/debug"

	"github.com/vireo-project/vireo/internal/launcher"
)

// usageError is the exit code for an invalid command line and for a subcommand that fails.
const usageError = 2

func main() {
	// The launcher's memory is overhead of every VM: collect garbage early.
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(8 << 20)

	os.Exit(run(os.Args[1:]))
}

// run returns the exit code. An invalid command line is an outcome, too: the VMI fails with it.
func run(arguments []string) int {
	code := 0
	root := command(&code)
	root.SetArgs(arguments)
	ran, err := root.ExecuteC()
	if err == nil {
		return code
	}
	if log := ran.Flags().Lookup(terminationLogFlag); ran == root && log != nil {
		if failed := launcher.WriteFailure(log.Value.String(), err); failed != nil {
			logger(0).Error(failed, "Cannot write the outcome")
		}
	}
	return usageError
}
