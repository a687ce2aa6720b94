// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-launcher is PID 1 of each VM's Pod.
package main

import (
	"os"
	"runtime/debug"

	"github.com/vireo-project/vireo/internal/launcher"
)

// mistaken is the exit code for a command line that is wrong, and for a subcommand that fails.
const mistaken = 2

func main() {
	// The launcher is one of the few megabytes that each VM costs: collect early and keep little.
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(8 << 20)

	os.Exit(run(os.Args[1:]))
}

// run returns the exit code. A command line that is wrong is an outcome, too: the VMI ends with it.
func run(arguments []string) int {
	code := 0
	root := command(&code)
	root.SetArgs(arguments)
	ran, err := root.ExecuteC()
	if err == nil {
		return code
	}
	if log := ran.Flags().Lookup(terminationLogFlag); ran == root && log != nil {
		if failed := launcher.Refuse(log.Value.String(), err); failed != nil {
			logger(0).Error(failed, "Cannot leave the outcome")
		}
	}
	return mistaken
}
