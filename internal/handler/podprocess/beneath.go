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

// errNotRegular is wrapped by the error for a file that is a device, a pipe or anything else but a regular file.
var errNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file for reading that lies on the file system mounted at a directory of the Pod. Neither a symlink
// nor ".." leads out of that file system, and nothing but a regular file is ever opened: opening a device can do something.
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
	// The descriptor stands for the very inode that was looked at.
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", reference.Fd()))
}

// runtimeDir is the one directory on the way to what is mounted in a launcher Pod that may be a symlink: images have /run there.
const runtimeDir = "/var/run"

// openMount opens a directory where something is mounted, as a mere reference. No symlink is followed on the way, but for that of the
// image at runtimeDir.
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
	return openAt(dir, rest, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}
