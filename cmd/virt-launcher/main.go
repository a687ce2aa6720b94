// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Command virt-launcher is PID 1 of each VM's Pod.
package main

import (
	"os"
	"runtime/debug"
)

func main() {
	// The launcher is one of the few megabytes that each VM costs: collect early and keep little.
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(8 << 20)

	code := 0
	if err := command(&code).Execute(); err != nil {
		code = 2
	}
	os.Exit(code)
}
