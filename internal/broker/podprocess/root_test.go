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

// What a Pod may put in the place of a file that the broker, which is root, reads for it.
func TestOpenWithinStaysInTheClaim(t *testing.T) {
	pod := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(pod, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(pod, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("run/state/nvram/vm.fd", "variables")
	write("etc/secret", "another's")
	// The image may have symlinks above the mount point.
	if err := os.Mkdir(filepath.Join(pod, "var"), 0o700); err != nil {
		t.Fatal(err)
	}
	link("../run", "var/run")
	link("../../../etc/secret", "run/state/nvram/relative")
	link("/etc/secret", "run/state/nvram/absolute")
	link("vm.fd", "run/state/nvram/beside")
	link("nvram", "run/state/directory")
	dir, err := os.Open(pod)
	if err != nil {
		t.Fatal(err)
	}
	root := &Root{dir: dir}
	defer func() { _ = root.Close() }()

	f, err := root.OpenWithin("/var/run/state", "nvram/vm.fd", unix.S_IFREG)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(f)
	if _ = f.Close(); err != nil || string(content) != "variables" {
		t.Errorf("read %q, %v", content, err)
	}
	for name, want := range map[string]error{
		"nvram/relative": unix.ELOOP, "nvram/absolute": unix.ELOOP, "nvram/beside": unix.ELOOP, "directory/vm.fd": unix.ELOOP,
		"../../etc/secret": unix.EXDEV, "/etc/secret": unix.EXDEV, "nvram/none": unix.ENOENT,
	} {
		if f, err := root.OpenWithin("/var/run/state", name, unix.S_IFREG); !errors.Is(err, want) {
			_ = f.Close()
			t.Errorf("%s: got %v, want %v", name, err, want)
		}
	}

	// Another mount below the claim.
	if err := unix.Mount(filepath.Join(pod, "etc"), filepath.Join(pod, "run/state/nvram"), "", unix.MS_BIND, ""); err != nil {
		t.Skipf("needs to be allowed to mount: %v", err)
	}
	defer func() { _ = unix.Unmount(filepath.Join(pod, "run/state/nvram"), unix.MNT_DETACH) }()
	if f, err := root.OpenWithin("/var/run/state", "nvram/secret", unix.S_IFREG); !errors.Is(err, unix.EXDEV) {
		_ = f.Close()
		t.Errorf("of another mount: got %v", err)
	}
}
