// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

// prepareState makes the directories for the state of the machine, and tells swtpm_setup, which libvirt runs for a new
// TPM, where it finds the authority that signs the TPM's certificates. Without the file libvirt would have swtpm_setup
// make one up.
func prepareState(claim, authority string) error {
	if err := copyFile(swtpmConfig, filepath.Join(xdgConfig, filepath.Base(swtpmConfig))); err != nil {
		return fmt.Errorf("configure the TPM's setup: %w", err)
	}
	if err := makeStateDirs(claim, authority); err != nil {
		return fmt.Errorf("make the directories for the machine's state: %w", err)
	}
	return nil
}

// makeStateDirs makes the directories in the claim, if the Pod has one, whose file system may not let anybody else in:
// libvirt makes none but the last. The authority lies there too, so that a TPM made anew is signed by the same one.
func makeStateDirs(claim, authority string) error {
	_, err := os.Stat(claim)
	if errors.Is(err, fs.ErrNotExist) {
		return os.MkdirAll(authority, 0o700)
	}
	if err != nil {
		return err
	}
	for _, dir := range []string{launcherpod.NVRAMState, launcherpod.TPMState, launcherpod.AuthorityState} {
		if err := os.MkdirAll(filepath.Join(claim, dir), 0o700); err != nil {
			return err
		}
	}
	return os.Symlink(filepath.Join(claim, launcherpod.AuthorityState), authority)
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from) //nolint:gosec // constant paths
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600) //nolint:gosec // constant paths
}
