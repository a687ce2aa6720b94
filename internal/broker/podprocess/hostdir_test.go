// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

// The owner of a directory changes only if it is empty, and root created it after the Pod.
func TestChownNewDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs to be root to change the owner of a directory")
	}
	const owner = 107
	top := t.TempDir()
	pod := filepath.Join(top, "pod")
	empty, filled, others, file := filepath.Join(top, "new"), filepath.Join(top, "filled"), filepath.Join(top, "others"),
		filepath.Join(top, "file")
	for _, err := range []error{
		os.Mkdir(pod, 0o755), os.Mkdir(empty, 0o755), os.Mkdir(filled, 0o755),
		os.WriteFile(filepath.Join(filled, "x.sh"), nil, 0o644),
		os.Mkdir(others, 0o755), os.Chown(others, 1000, 1000), os.WriteFile(file, nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	created, err := podprocess.CreationTime(pod)
	if err != nil || created.IsZero() {
		t.Skipf("this file system does not record creation times: %v", err)
	}
	later := created.Add(time.Hour)

	for name, tc := range map[string]struct {
		dir   string
		since time.Time
		want  uint32
	}{
		"new":             {empty, created, owner},
		"new, once more":  {empty, created, owner},
		"older":           {pod, later, 0},
		"not empty":       {filled, created, 0},
		"of another user": {others, created, 1000},
	} {
		root := selfRoot(t)
		if err := root.ChownNewDirectory(tc.dir, owner, tc.since); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		info, err := os.Stat(tc.dir)
		if err != nil {
			t.Fatal(err)
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Uid != tc.want || stat.Gid != tc.want {
			t.Errorf("%s: the owner is %d:%d, want %d", name, stat.Uid, stat.Gid, tc.want)
		}
	}
	if err := selfRoot(t).ChownNewDirectory(filepath.Join(top, "none"), owner, created); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if err := selfRoot(t).ChownNewDirectory(file, owner, created); !errors.Is(err, podprocess.ErrKind) &&
		!errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file: %v", err)
	}
}

func openDir(t *testing.T, name string) *os.File {
	t.Helper()
	dir, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return dir
}

func selfRoot(t *testing.T) *podprocess.Root {
	t.Helper()
	root, err := podprocess.OpenRoot(openDir(t, "/proc/self"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// A Pod cannot name another directory by a symlink.
func TestChownFollowsNoSymlink(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs to be root to change the owner of a directory")
	}
	top := t.TempDir()
	dir, link := filepath.Join(top, "dir"), filepath.Join(top, "link")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink("dir", link)); err != nil {
		t.Fatal(err)
	}
	created, err := podprocess.CreationTime(top)
	if err != nil || created.IsZero() {
		t.Skipf("this file system does not record creation times: %v", err)
	}
	if err := selfRoot(t).ChownNewDirectory(link, 107, created); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("got %v, want %v", err, syscall.ELOOP)
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); stat.Uid != 0 {
		t.Errorf("the directory belongs to user %d", stat.Uid)
	}
}
