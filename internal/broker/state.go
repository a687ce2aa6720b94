// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/broker/server"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// maxStateEntries is the limit for the entries of a claim. There are about ten files and directories.
const maxStateEntries = 256

// syncState writes the Pod's persistent state to the disk.
func (b *Broker) syncState(pod string, _ server.None) (server.Task, error) {
	return b.inRoot(b.storage, pod, func(root *podprocess.Root) (server.Answer, error) { return server.Answer{}, syncState(root) }), nil
}

// syncState returns when all files of the claim are on its disk, each directory after what is in it. It opens nothing but the claim,
// whatever links the Pod has created.
func syncState(root *podprocess.Root) error {
	names := []string{"."}
	for i := 0; i < len(names); i++ {
		err := ofState(root, names[i], func(file *os.File) error {
			entries, err := podprocess.Names(file, maxStateEntries+2-len(names))
			for _, entry := range entries {
				names = append(names, path.Join(names[i], entry))
			}
			if errors.Is(err, unix.ENOTDIR) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
		if len(names) > maxStateEntries+1 {
			return fmt.Errorf("the persistent state has more than %d files and directories: delete those that are not of the guest", maxStateEntries)
		}
	}
	for _, name := range slices.Backward(names) {
		if err := ofState(root, name, (*os.File).Sync); err != nil && !errors.Is(err, unix.EINVAL) {
			// Some file systems do not support fsync on directories, because they write entries synchronously.
			return err
		}
	}
	return nil
}

// ofState calls a function with a file or a directory of the claim. It does nothing with one that is not to be written: swtpm replaces its
// files, and the launcher may have created others than files and directories.
func ofState(root *podprocess.Root, name string, do func(*os.File) error) error {
	file, err := root.OpenWithin(layout.StateDir, name, unix.S_IFDIR, unix.S_IFREG)
	if name != "." && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, podprocess.ErrKind) || errors.Is(err, unix.ELOOP)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return do(file)
}
