// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package memorylimit sets the memory limit of Go's runtime from that of the container.
package memorylimit

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
)

// Env is the environment variable with the container's memory limit in bytes. The manifests set it by the downward API.
const Env = "MEMORY_LIMIT"

// Percentages of the container's limit that Go's runtime may use. The rest is for memory that Go's runtime does not
// count.
const (
	// PureGo is for programs without C libraries: the rest is for the binary and files in memory.
	PureGo = 90
	// WithLibvirt is for virt-handler: libvirt's C library allocates launchers' responses outside Go's heap, and the
	// agent creates files in memory.
	WithLibvirt = 70
)

// Apply sets the runtime's limit to a percentage of the container's. It does nothing if Env is not set, or if
// GOMEMLIMIT is set and takes precedence. It returns an error if Env is no positive number.
func Apply(percentage int64) error {
	text := os.Getenv(Env)
	if text == "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit <= 0 {
		return fmt.Errorf("environment %s is %q: set it to a number of bytes", Env, text)
	}
	debug.SetMemoryLimit(limit / 100 * percentage)
	return nil
}
