// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package selftest

import (
	"os"
	"testing"
)

func TestTwoQEMUsAreDetected(t *testing.T) {
	root := os.Getenv("VIREO_LAUNCHER_ROOTFS")
	if root == "" || os.Getuid() != 0 {
		t.Skip("needs root, and VIREO_LAUNCHER_ROOTFS: `make test` sets it")
	}
	if err := Run(root, t.TempDir()); err != nil {
		t.Error(err)
	}
}
