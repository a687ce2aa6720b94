// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrKind means that a file is a device, a pipe or another kind of file than is opened.
var ErrKind = errors.New("it is no file or directory that is opened")

// OpenRegular opens a regular file for reading on the file system that is mounted at a directory of the Pod. Neither a
// symlink nor ".." leads out of that file system.
func (r *Root) OpenRegular(mount, name string) (*os.File, error) {
	return r.openBelow(mount, name, 0, unix.S_IFREG)
}

// OpenWithin opens a file or a directory for reading below a directory of the Pod, such as the mount point of a claim.
// It follows no symlink and enters no other mount: the result is a file of that claim or an error, whatever the Pod has
// written there. kinds are unix.S_IFREG and unix.S_IFDIR.
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
	reference, err := OpenAt(dir, name, unix.O_PATH,
		unix.RESOLVE_BENEATH|unix.RESOLVE_NO_XDEV|unix.RESOLVE_NO_MAGICLINKS|resolve)
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

// openMount opens a mount point with O_PATH. It follows no symlink but the one at runtimeDir, and opens none of a file
// system of the kernel.
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

// CreationTime returns when a file or directory was created, zero if the file system does not record it. It follows no
// symlink.
func CreationTime(path string) (time.Time, error) {
	stat, err := statx(unix.AT_FDCWD, path)
	return creationTime(stat), err
}

func creationTime(stat *unix.Statx_t) time.Time {
	if stat.Mask&unix.STATX_BTIME == 0 {
		return time.Time{}
	}
	return time.Unix(stat.Btime.Sec, int64(stat.Btime.Nsec))
}

// ChownNewDirectory sets the owner of a directory of the Pod if root created it after a point in time and it is empty.
// It does not change any other directory, and follows no symlink.
func (r *Root) ChownNewDirectory(name string, owner int, since time.Time) error {
	dir, err := r.OpenWithin(name, ".", unix.S_IFDIR)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	stat, err := statx(int(dir.Fd()), "")
	// A file system that does not record the time returns zero, which is before since.
	if err != nil || stat.Uid != 0 || creationTime(stat).Before(since) {
		return err
	}
	if _, err := dir.Readdirnames(1); !errors.Is(err, io.EOF) {
		return err
	}
	return dir.Chown(owner, owner)
}

func statx(dir int, path string) (*unix.Statx_t, error) {
	var stat unix.Statx_t
	if err := unix.Statx(dir, path, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_UID|unix.STATX_BTIME,
		&stat); err != nil {
		return &stat, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return &stat, nil
}

// errKernelFiles means that a file is one of the kernel's.
var errKernelFiles = errors.New("it is on a file system of the kernel")

// kernelFileSystems are those whose files the kernel makes up, and shows more of to root.
var kernelFileSystems = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEBUGFS_MAGIC,
	unix.TRACEFS_MAGIC,
	unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.SELINUX_MAGIC, unix.SMACK_MAGIC, unix.EFIVARFS_MAGIC,
	unix.PSTOREFS_MAGIC, unix.BINFMTFS_MAGIC, unix.RDTGROUP_SUPER_MAGIC, unix.NSFS_MAGIC, unix.DEVPTS_SUPER_MAGIC,
}

// ExpectNoKernelFile returns an error if a file or directory is on a file system of the kernel. Its files are regular
// ones, and differ by who has opened them: with the broker's privileges, they have physical addresses and the memory of
// PCI devices. A Pod whose runtime lets it make user namespaces can mount them wherever it likes.
func ExpectNoKernelFile(file *os.File) error {
	var stat unix.Statfs_t
	err := unix.Fstatfs(int(file.Fd()), &stat)
	if err == nil && slices.Contains(kernelFileSystems, int64(stat.Type)) { //nolint:unconvert // the width differs between architectures
		err = errKernelFiles
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: file.Name(), Err: err}
	}
	return nil
}
