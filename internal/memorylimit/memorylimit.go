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

// share is how much of the limit Go may use, in percent. The rest is for what Go does not count: the binary, and files in memory.
const share = 90

// Apply sets the limit, unless nothing says what it is or GOMEMLIMIT says something else.
func Apply() error {
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
