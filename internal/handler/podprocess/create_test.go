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

	"github.com/vireo-project/vireo/internal/handler/podprocess"
)

func TestCreateRegular(t *testing.T) {
	process, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Close() }()
	root, err := podprocess.OpenRoot(process)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	dir, other := t.TempDir(), t.TempDir()
	was := filepath.Join(dir, "was")
	for _, err := range []error{
		os.WriteFile(was, []byte("mine"), 0o640),
		os.Symlink(filepath.Join(other, "new"), filepath.Join(dir, "link")), os.Symlink("/nowhere", filepath.Join(dir, "dangling")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	owner := os.Getuid()
	if owner == 0 {
		owner = 107
	}
	for name, want := range map[string]error{
		"disk.img": nil, "was": fs.ErrExist, "link": fs.ErrExist, "dangling": fs.ErrExist, "../escaped": syscall.EXDEV,
		filepath.Join(other, "absolute"): syscall.EXDEV,
	} {
		if err := root.CreateRegular(dir, name, owner, 1<<20); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "disk.img"))
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); info.Size() != 1<<20 || int(stat.Uid) != owner || info.Mode() != 0o600 {
		t.Errorf("%d bytes of user %d with mode %v", info.Size(), stat.Uid, info.Mode())
	}
	if content, err := os.ReadFile(was); err != nil || string(content) != "mine" {
		t.Errorf("a file that was there has %q now (%v)", content, err)
	}
	if left, err := os.ReadDir(other); err != nil || len(left) > 0 {
		t.Errorf("made elsewhere: %v (%v)", left, err)
	}
	// A file that cannot be given to its user is not left behind.
	if err := root.CreateRegular(dir, "negative", owner, -1); err == nil {
		t.Error("a file of negative size was made")
	}
	if _, err := os.Lstat(filepath.Join(dir, "negative")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("half a file was left behind: %v", err)
	}
}
