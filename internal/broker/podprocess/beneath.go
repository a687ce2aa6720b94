// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrKind means that a file is a device, a pipe or another kind of file than is opened.
var ErrKind = errors.New("it is no file or directory that is opened")

// OpenRegular opens a regular file for reading on the file system that is mounted at a directory of the Pod. Neither a symlink
// nor ".." leads out of that file system.
func (r *Root) OpenRegular(mount, name string) (*os.File, error) {
	return r.openBelow(mount, name, 0, unix.S_IFREG)
}

// OpenWithin opens a file or a directory for reading below a directory of the Pod, such as the mount point of a claim. It follows no
// symlink and enters no other mount: the result is a file of that claim or an error, whatever the Pod has written there. kinds are
// unix.S_IFREG and unix.S_IFDIR.
func (r *Root) OpenWithin(mount, name string, kinds ...uint32) (*os.File, error) {
	return r.openBelow(mount, name, unix.RESOLVE_NO_SYMLINKS, kinds...)
}

// openBelow opens no other kinds of files: opening a device can have side effects, and opening a pipe blocks.
func (r *Root) openBelow(mount, name string, resolve uint64, kinds ...uint32) (*os.File, error) {
	dir, err := r.openMount(mount)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	reference, err := OpenAt(dir, name, unix.O_PATH, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV|unix.RESOLVE_NO_MAGICLINKS|resolve)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reference.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(reference.Fd()), &stat); err != nil {
		return nil, err
	}
	if !slices.Contains(kinds, stat.Mode&unix.S_IFMT) {
		return nil, &os.PathError{Op: "open", Path: name, Err: ErrKind}
	}
	// The descriptor refers to the inode that was checked.
	return os.Open(Reopen(reference))
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
	opened, err := OpenAt(dir, rest, unix.O_PATH|unix.O_DIRECTORY, Beneath)
	if err != nil {
		return nil, err
	}
	if err := ExpectNoKernelFile(opened); err != nil {
		_ = opened.Close()
		return nil, err
	}
	return opened, nil
}
