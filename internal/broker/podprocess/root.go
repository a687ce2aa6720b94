// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Root is the root directory of a Pod's process.
type Root struct{ dir *os.File }

// OpenRoot opens the root directory of a process, given its directory in /proc.
func OpenRoot(process *os.File) (*Root, error) {
	dir, err := openAt(process, "root", &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC})
	if err != nil {
		return nil, err
	}
	return &Root{dir: dir}, nil
}

// Open opens a path in the Pod. Symlinks are resolved in the Pod, and opening a pipe does not block. It does block on storage
// that hangs.
func (r *Root) Open(name string, flags int) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_PATH == 0 {
		how.Flags |= unix.O_NONBLOCK
	}
	return openAt(r.dir, name, &how)
}

// OpenWithin opens a file for reading below a directory of the Pod, such as the mount point of a claim. It follows no symlink and
// enters no other mount: the result is a file of that claim or an error, whatever the Pod has written there.
func (r *Root) OpenWithin(dir, name string) (*os.File, error) {
	mount, err := r.openMount(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = mount.Close() }()
	return openAt(mount, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// OpenRegularWithin is OpenWithin for regular files only.
func (r *Root) OpenRegularWithin(dir, name string) (*os.File, error) {
	f, err := r.OpenWithin(dir, name)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, &os.PathError{Op: "open", Path: name, Err: errNotRegular}, f.Close())
	}
	return f, nil
}

// Close closes the directory.
func (r *Root) Close() error { return r.dir.Close() }

func openAt(dir *os.File, name string, how *unix.OpenHow) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, how)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}
