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

// prepareState creates the directories for the VM's persistent state, and installs the configuration of swtpm_setup, which
// libvirt runs for a new TPM. It contains the location of the authority that signs the TPM's certificates; without it swtpm_setup
// creates another one.
func prepareState(claim, authority string) error {
	if err := copyFile(swtpmConfig, filepath.Join(xdgConfig, filepath.Base(swtpmConfig))); err != nil {
		return fmt.Errorf("configure the TPM's setup: %w", err)
	}
	if err := makeStateDirs(claim, authority); err != nil {
		return fmt.Errorf("create the directories for the guest's persistent state: %w", err)
	}
	return nil
}

// makeStateDirs creates the directories in the claim, if the Pod has one: libvirt only creates the innermost ones. The claim has the
// authority too, so that a new TPM is signed by the same one.
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

// sharedState is the part of libvirt's configuration that declares the claim as shared with another Pod: a TPM that is migrated
// uses the state that is there, and libvirt creates none.
const sharedState = `, "` + launcherpod.StateDir + `"`

// configureQEMU installs libvirt's configuration of QEMU. It declares the claim as shared; configureQEMU removes that if it is not.
func configureQEMU(from, to string, shared bool) error {
	content, err := os.ReadFile(from) //nolint:gosec // constant paths
	if err != nil {
		return err
	}
	text := string(content)
	switch {
	case strings.Count(text, sharedState) != 1:
		return fmt.Errorf("%s does not contain exactly once that %s is shared", from, launcherpod.StateDir)
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
