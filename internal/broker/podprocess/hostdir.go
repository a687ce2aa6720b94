// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// CreationTime returns when a file or directory was created, zero if the file system does not record it. It follows no symlink.
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

// ChownNewDirectory sets the owner of a directory of the Pod if root created it after a point in time and it is empty. It does
// not change any other directory, and follows no symlink.
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
	if err := unix.Statx(dir, path, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_UID|unix.STATX_BTIME, &stat); err != nil {
		return &stat, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return &stat, nil
}
