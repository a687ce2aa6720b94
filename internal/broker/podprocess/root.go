// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Root is the root directory of a Pod's process.
type Root struct{ dir *os.File }

// OpenRoot opens the root directory of a process, given its directory in /proc.
func OpenRoot(process *os.File) (*Root, error) {
	dir, err := OpenAt(process, "root", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Root{dir: dir}, nil
}

// Open opens a path in the Pod. Symlinks are resolved in the Pod, and opening a pipe does not block. It does block on storage
// that hangs.
func (r *Root) Open(name string, flags int) (*os.File, error) {
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NONBLOCK
	}
	return OpenAt(r.dir, name, flags, unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)
}

// Close closes the directory.
func (r *Root) Close() error { return r.dir.Close() }

// Beneath are the restrictions that keep a path below the directory that it starts in, without symlinks, so that no entry that a Pod
// creates can redirect the broker.
const Beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// OpenAt opens a path below a directory, with flags of open and restrictions of openat2 (RESOLVE_). Only the owner may use a file that it
// creates.
func OpenAt(dir *os.File, name string, flags int, resolve uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: resolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	fd, err := unix.Openat2(int(dir.Fd()), name, &how)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Reopen returns a path to the inode of an open descriptor, even if it was renamed. It fits into the 108 bytes of a socket's address.
func Reopen(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
