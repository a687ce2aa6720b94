// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package podprocess

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOpenRegularStaysOnItsMount(t *testing.T) {
	root := t.TempDir()
	mount := filepath.Join(root, "var/image")
	if err := os.MkdirAll(filepath.Join(mount, "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(string) error{
		"disk/disk.img": func(p string) error { return os.WriteFile(p, []byte("image"), 0o600) },
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
	defer func() { _ = dir.Close() }()
	pod, err := OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pod.Close() }()
	read := func(mount, name string) (string, error) {
		f, err := pod.OpenRegular(mount, name)
		if err != nil {
			return "", err
		}
		defer func() { _ = f.Close() }()
		content, err := io.ReadAll(f)
		return string(content), err
	}
	for _, c := range [][2]string{{"/var/image", "disk/disk.img"}, {"/var/image", "link.img"},
		{"/var/run/image", "disk/disk.img"}} {
		if got, err := read(c[0], c[1]); err != nil || got != "image" {
			t.Errorf("%s in %s: %q, %v", c[1], c[0], got, err)
		}
	}
	for _, mount := range []string{"/var/elsewhere", "/var/run/elsewhere", "/linked/image", "/var/run/../image"} {
		if got, err := read(mount, "disk/disk.img"); err == nil {
			t.Errorf("%s was followed: %q", mount, got)
		}
	}
	for _, name := range []string{"out.img", "absolute.img", "../../secret", "/secret", "pipe", "disk", "nothing"} {
		if got, err := read("/var/image", name); err == nil {
			t.Errorf("%s was read: %q", name, got)
		}
	}
}

// A Pod may have mounted a file system of the kernel where an image or the persistent state is expected. Its files are
// regular ones.
func TestFilesOfTheKernelAreNotOpened(t *testing.T) {
	process, err := os.Open("/proc/self")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Close() }()
	root, err := OpenRoot(process)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	for _, c := range [][2]string{{"/proc", "iomem"}, {"/proc", "self/pagemap"}, {"/sys", "kernel/notes"},
		{"/sys/devices", "system/cpu/online"}} {
		within := func(mount, name string) (*os.File, error) { return root.OpenWithin(mount, name, unix.S_IFREG) }
		for how, open := range map[string]func(mount, name string) (*os.File, error){"OpenRegular": root.OpenRegular,
			"OpenWithin": within} {
			f, err := open(c[0], c[1])
			if err == nil {
				_ = f.Close()
			}
			if !errors.Is(err, errKernelFiles) {
				t.Errorf("%s of %s in %s: %v", how, c[1], c[0], err)
			}
		}
	}
}
