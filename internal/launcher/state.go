// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

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

// sharedState is the part of libvirt's configuration by which it takes the claim for one that another Pod uses, too: a TPM that comes
// from there finds its state and makes none.
const sharedState = `, "` + launcherpod.StateDir + `"`

// configureQEMU puts libvirt's configuration of QEMU in place, which says by itself that the claim with the machine's state is shared.
func configureQEMU(from, to string, shared bool) error {
	content, err := os.ReadFile(from) //nolint:gosec // constant paths
	if err != nil {
		return err
	}
	text := string(content)
	switch {
	case strings.Count(text, sharedState) != 1:
		return fmt.Errorf("%s does not say once that %s is shared", from, launcherpod.StateDir)
	case !shared:
		text = strings.Replace(text, sharedState, "", 1)
	}
	return os.WriteFile(to, []byte(text), 0o600) //nolint:gosec // constant paths
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from) //nolint:gosec // constant paths
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600) //nolint:gosec // constant paths
}
