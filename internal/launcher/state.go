// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// sharedDirs matches the directories of which libvirt's configuration says that another Pod can have the same files, so that a guest
// may migrate. A TPM that is migrated uses the state that is there, and libvirt creates none.
var sharedDirs = regexp.MustCompile(`(?m)^shared_filesystems = \[ (.*) \]$`)

// configureQEMU installs libvirt's configuration of QEMU for a Pod: without the directories that the Pod does not have, and without those
// that are its own. libvirt 11.3 ignores all directories after one that does not exist.
func configureQEMU(from, to string, own ...string) error {
	content, err := os.ReadFile(from) //nolint:gosec // constant paths
	if err != nil {
		return err
	}
	text := string(content)
	found := sharedDirs.FindStringSubmatch(text)
	if found == nil {
		return fmt.Errorf("%s has no line with shared_filesystems", from)
	}
	var dirs []string
	for _, quoted := range strings.Split(found[1], ", ") {
		dir := strings.Trim(quoted, `"`)
		if slices.Contains(own, dir) {
			continue
		}
		switch _, err := os.Stat(dir); { //nolint:gosec // from the image's configuration
		case err == nil:
			dirs = append(dirs, quoted)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	text = strings.Replace(text, found[1], strings.Join(dirs, ", "), 1)
	return os.WriteFile(to, []byte(text), 0o600) //nolint:gosec // constant paths
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from) //nolint:gosec // constant paths
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600) //nolint:gosec // constant paths
}
