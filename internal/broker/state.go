// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// maxStateEntries is the limit for the entries of a claim. There are about ten files and directories.
const maxStateEntries = 256

// syncState writes the Pod's persistent state to the disk.
func (s *Server) syncState(pod string, _ none) (task, error) {
	return s.inRoot(s.storage, pod, func(root *podprocess.Root) (answer, error) { return answer{}, syncState(root) }), nil
}

// syncState returns when all files of the claim are on its disk, each directory after what is in it. It opens nothing but the claim,
// whatever links the Pod has created.
func syncState(root *podprocess.Root) error {
	names := []string{"."}
	for i := 0; i < len(names); i++ {
		entries, err := entriesOf(root, names[i], maxStateEntries+2-len(names))
		if err != nil {
			return err
		}
		for _, entry := range entries {
			names = append(names, path.Join(names[i], entry))
		}
		if len(names) > maxStateEntries+1 {
			return fmt.Errorf("the persistent state has more than %d files and directories: delete those that are not of the guest", maxStateEntries)
		}
	}
	for _, name := range slices.Backward(names) {
		if err := syncFile(root, name); err != nil {
			return err
		}
	}
	return nil
}

// entriesOf returns the first entries of a directory, and none of a file.
func entriesOf(root *podprocess.Root, name string, most int) ([]string, error) {
	dir, err := root.OpenWithin(layout.StateDir, name, unix.S_IFDIR)
	if err != nil {
		return nil, notOfState(name, err)
	}
	defer func() { _ = dir.Close() }()
	return podprocess.Names(dir, most)
}

func syncFile(root *podprocess.Root, name string) error {
	file, err := root.OpenWithin(layout.StateDir, name, unix.S_IFDIR, unix.S_IFREG)
	if err != nil {
		return notOfState(name, err)
	}
	defer func() { _ = file.Close() }()
	// Some file systems do not support fsync on directories, because they write entries synchronously.
	if err := file.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// notOfState returns no error about an entry of the claim that is not to be written: swtpm replaces its files, and the launcher may have
// created others than files and directories.
func notOfState(name string, err error) error {
	if name != "." && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, podprocess.ErrKind) || errors.Is(err, unix.ELOOP)) {
		return nil
	}
	return err
}
