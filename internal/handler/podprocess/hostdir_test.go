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

	"github.com/vireo-project/vireo/internal/handler/podprocess"
)

// Only an empty directory of root that has been made since the Pod came becomes another user's.
func TestGiveNewDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs to be root to give a directory away")
	}
	const owner = 107
	top := t.TempDir()
	pod := filepath.Join(top, "pod")
	empty, filled, others, file := filepath.Join(top, "new"), filepath.Join(top, "filled"), filepath.Join(top, "others"), filepath.Join(top, "file")
	for _, err := range []error{
		os.Mkdir(pod, 0o755), os.Mkdir(empty, 0o755), os.Mkdir(filled, 0o755), os.WriteFile(filepath.Join(filled, "x.sh"), nil, 0o644),
		os.Mkdir(others, 0o755), os.Chown(others, 1000, 1000), os.WriteFile(file, nil, 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	made, err := podprocess.Made(openDir(t, pod))
	if err != nil || made.IsZero() {
		t.Skipf("this file system does not say when a directory was made: %v", err)
	}
	later := made.Add(time.Hour)

	for name, tc := range map[string]struct {
		dir   string
		since time.Time
		want  uint32
	}{
		"new":             {empty, made, owner},
		"new, once more":  {empty, made, owner},
		"was there":       {pod, later, 0},
		"not empty":       {filled, made, 0},
		"of another user": {others, made, 1000},
	} {
		root := selfRoot(t)
		if err := root.GiveNewDirectory(tc.dir, owner, tc.since); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		info, err := os.Stat(tc.dir)
		if err != nil {
			t.Fatal(err)
		}
		if stat := info.Sys().(*syscall.Stat_t); stat.Uid != tc.want || stat.Gid != tc.want {
			t.Errorf("%s: is of %d:%d now, want %d", name, stat.Uid, stat.Gid, tc.want)
		}
	}
	if err := selfRoot(t).GiveNewDirectory(filepath.Join(top, "none"), owner, made); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if err := selfRoot(t).GiveNewDirectory(file, owner, made); !errors.Is(err, syscall.ENOTDIR) {
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
