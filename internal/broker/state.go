// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

const (
	// tpmStateFile is the permanent state of a TPM 2.0. Source: swtpm src/swtpm/swtpm_nvstore_dir.c.
	tpmStateFile = "tpm2-00.permall"
	// maxStateEntries is the limit for the entries of a claim. There are about ten files and directories.
	maxStateEntries = 256
)

// syncState writes the Pod's persistent state to the disk.
func (s *Server) syncState(pod string, a brokerapi.SyncStateArguments) (task, error) {
	tpm := ""
	if a.TPM != "" {
		var err error
		if tpm, err = below(a.TPM, layout.StateDir); err != nil {
			return task{}, err
		}
	}
	return s.inRoot(s.storage, pod, func(root *podprocess.Root) (answer, error) { return answer{}, syncState(root, tpm) }), nil
}

// below returns the rest of a path of the Pod that is below a directory. It accepts clean paths only.
func below(name, dir string) (string, error) {
	rest, found := strings.CutPrefix(name, dir+"/")
	if !found || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		return "", brokerapi.Refused("%.256q is not below %s", name, dir)
	}
	return rest, nil
}

// syncState returns when all files of the claim are on its disk. It opens nothing but the claim, whatever links the Pod has
// created.
func syncState(root *podprocess.Root, tpm string) error {
	dir, err := root.OpenWithin(layout.StateDir, ".")
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if tpm != "" {
		if err := findTPMState(root, tpm); err != nil {
			return fmt.Errorf("the TPM's state is not complete in %s: %w", tpm, err)
		}
	}
	left := maxStateEntries
	return syncTree(root, dir, ".", &left)
}

// syncTree writes what is open, the entry of a name in the claim, to the disk after everything below it. left is how many more entries
// may be read: the launcher can create as many as it likes.
func syncTree(root *podprocess.Root, open *os.File, name string, left *int) error {
	info, err := open.Stat()
	if err != nil {
		return err
	}
	if info.IsDir() {
		entries, err := open.Readdirnames(*left + 1)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if *left -= len(entries); *left < 0 {
			return fmt.Errorf("the persistent state has more than %d files and directories: delete those that are not of the guest", maxStateEntries)
		}
		for _, entry := range entries {
			if err := syncEntry(root, open, name, entry, left); err != nil {
				return err
			}
		}
	}
	// Some file systems do not support fsync on directories, because they write entries synchronously.
	if err := open.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// syncEntry writes an entry of a directory to the disk, if it is a regular file or a directory. Opening others could have side effects.
func syncEntry(root *podprocess.Root, dir *os.File, parent, name string, left *int) error {
	var stat unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	if kind := stat.Mode & unix.S_IFMT; err == nil && kind != unix.S_IFREG && kind != unix.S_IFDIR {
		return nil
	}
	if err == nil {
		var f *os.File
		if f, err = root.OpenWithin(layout.StateDir, path.Join(parent, name)); err == nil {
			defer func() { _ = f.Close() }()
			return syncTree(root, f, path.Join(parent, name), left)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // swtpm replaces its files.
	}
	return err
}

// findTPMState returns an error unless a directory of the claim has the state of a TPM.
func findTPMState(root *podprocess.Root, dir string) error {
	f, err := root.OpenRegularWithin(layout.StateDir, path.Join(dir, tpmStateFile))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil && info.Size() == 0 {
		err = errors.New("it is empty")
	}
	return err
}
