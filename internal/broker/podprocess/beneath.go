// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// errNotRegular means that a file is a device, a pipe or another file that is not regular.
var errNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file for reading on the file system that is mounted at a directory of the Pod. Neither a symlink
// nor ".." leads out of that file system, and no other kind of file is opened: opening a device can have side effects.
func (r *Root) OpenRegular(mount, name string) (*os.File, error) {
	dir, err := r.openMount(mount)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	reference, err := openAt(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = reference.Close() }()
	info, err := reference.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	// The descriptor refers to the inode that was checked.
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", reference.Fd()))
}

// runtimeDir is the one directory above a launcher Pod's mounts that may be a symlink: in images it points to /run.
const runtimeDir = "/var/run"

// openMount opens a mount point with O_PATH. It follows no symlink but the one at runtimeDir, and opens none of a file system of the
// kernel.
func (r *Root) openMount(mount string) (*os.File, error) {
	base, rest := "/", strings.TrimPrefix(mount, "/")
	if below, found := strings.CutPrefix(mount, runtimeDir+"/"); found {
		base, rest = runtimeDir, below
	}
	dir, err := r.Open(base, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	opened, err := openAt(dir, rest, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	if err := ExpectNoKernelFile(opened); err != nil {
		_ = opened.Close()
		return nil, err
	}
	return opened, nil
}
