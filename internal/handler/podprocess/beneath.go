// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// errNotRegular is wrapped by the error for a file that is a device, a pipe or anything else but a regular file.
var errNotRegular = errors.New("not a regular file")

// OpenRegular opens a regular file for reading that lies on the file system mounted at a directory of the Pod. Neither a symlink
// nor ".." leads out of that file system, and nothing but a regular file is ever opened: opening a device can do something.
func (r *Root) OpenRegular(mount, name string) (*os.File, error) {
	dir, err := r.Open(mount, unix.O_PATH|unix.O_DIRECTORY)
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

// CreateRegular makes a file of so many bytes without content in a directory of the Pod, and gives it to a user. It fails if there is anything of
// that name: nothing that was there is touched.
func (r *Root) CreateRegular(dir, name string, owner int, bytes int64) error {
	parent, err := r.Open(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = parent.Close() }()
	file, err := openAt(parent, name, &unix.OpenHow{
		Flags: unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_WRONLY | unix.O_CLOEXEC, Mode: 0o600,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	err = errors.Join(file.Truncate(bytes), file.Chown(owner, owner))
	if err == nil {
		return nil
	}
	// Half a file would be taken for one that was there before.
	var made, there unix.Stat_t
	if unix.Fstat(int(file.Fd()), &made) == nil && unix.Fstatat(int(parent.Fd()), name, &there, unix.AT_SYMLINK_NOFOLLOW) == nil &&
		made.Dev == there.Dev && made.Ino == there.Ino {
		err = errors.Join(err, unix.Unlinkat(int(parent.Fd()), name, 0))
	}
	return err
}
