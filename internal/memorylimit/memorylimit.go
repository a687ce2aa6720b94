// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

// Package memorylimit makes Go's garbage collector keep to the memory limit of the container.
package memorylimit

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
)

// Env has the container's limit in bytes; the manifests fill it in by the downward API.
const Env = "MEMORY_LIMIT"

// Shares of the limit that Go may use, in percent. The rest is for what Go does not count.
const (
	// GoAlone is for a program in Go: the rest is for the binary, and files in memory.
	GoAlone = 90
	// WithLibvirt is for virt-handler: libvirt's C library keeps what launchers answer outside of Go's heap, and the agent makes files in memory.
	WithLibvirt = 60
)

// Apply sets the limit to a share of the container's, unless nothing says what that is or GOMEMLIMIT says something else.
func Apply(share int64) error {
	text := os.Getenv(Env)
	if text == "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit <= 0 {
		return fmt.Errorf("environment %s is %q: give a number of bytes", Env, text)
	}
	debug.SetMemoryLimit(limit / 100 * share)
	return nil
}
