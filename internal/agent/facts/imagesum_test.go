// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package facts_test

import (
	"context"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/agent/facts"
	"github.com/vireo-project/vireo/internal/agent/hypervisor"
)

func TestSumOfAFileInAnImage(t *testing.T) {
	root := t.TempDir()
	mount := filepath.Join(root, "var/image")
	if err := os.MkdirAll(filepath.Join(mount, "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 3<<20+7)
	content[2<<20] = 1
	for name, do := range map[string]func(string) error{
		"disk/disk.img": func(p string) error { return os.WriteFile(p, content, 0o600) },
		"secret":        func(string) error { return os.WriteFile(filepath.Join(root, "secret"), []byte("x"), 0o600) },
		"link.img":      func(p string) error { return os.Symlink("disk/disk.img", p) },
		"out.img":       func(p string) error { return os.Symlink("../../secret", p) },
		"absolute.img":  func(p string) error { return os.Symlink("/secret", p) },
		"pipe":          func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		if err := do(filepath.Join(mount, name)); err != nil {
			t.Fatal(err)
		}
	}
	// The image may have a symlink at /var/run, and no other above a mount point.
	for name, to := range map[string]string{"var/run": "../var", "var/elsewhere": "image", "linked": "var"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	// A process's directory in /proc has a symlink to its root.
	process := t.TempDir()
	if err := os.Symlink(root, filepath.Join(process, "root")); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(process)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	files := facts.PodFiles{Process: &hypervisor.Process{Dir: dir}}
	for _, name := range []string{"disk/disk.img", "link.img"} {
		size, crc, err := files.Sum(t.Context(), "team", "/var/image", name)
		if err != nil || size != int64(len(content)) || crc != crc32.ChecksumIEEE(content) {
			t.Errorf("%s has %d bytes and checksum %d: %v", name, size, crc, err)
		}
	}
	if size, _, err := files.Sum(t.Context(), "team", "/var/run/image", "disk/disk.img"); err != nil || size != int64(len(content)) {
		t.Errorf("below the runtime's directory: %d bytes, %v", size, err)
	}
	for _, mount := range []string{"/var/elsewhere", "/var/run/elsewhere", "/linked/image", "/var/run/../image"} {
		if size, _, err := files.Sum(t.Context(), "team", mount, "disk/disk.img"); err == nil {
			t.Errorf("%s was followed, %d bytes", mount, size)
		}
	}
	for _, name := range []string{"out.img", "absolute.img", "../../secret", "/secret", "pipe", "disk", "nothing"} {
		if size, _, err := files.Sum(t.Context(), "team", "/var/image", name); err == nil {
			t.Errorf("%s was read, %d bytes", name, size)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, _, err := files.Sum(ended, "team", "/var/image", "disk/disk.img"); err == nil {
		t.Error("a file was read after cancellation")
	}
}
