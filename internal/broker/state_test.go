// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// podRoot returns a Pod's root directory, and the broker's open reference to it.
func podRoot(t *testing.T) (string, *podprocess.Root) {
	t.Helper()
	pod, process := t.TempDir(), t.TempDir()
	if err := os.Symlink(pod, filepath.Join(process, "root")); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(process)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	root, err := podprocess.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return pod, root
}

func writeFile(t *testing.T, name string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte("state"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestSyncStateStaysInTheClaim(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, pod string)
		want    error
	}{
		"as it should be": {func(t *testing.T, pod string) {
			writeFile(t, filepath.Join(pod, layout.StateDir, "swtpm/uuid/tpm2/state"))
		}, nil},
		"a link in the claim": {func(t *testing.T, pod string) {
			writeFile(t, filepath.Join(pod, layout.StateDir, "else"))
			if err := os.Symlink("/elsewhere", filepath.Join(pod, layout.StateDir, "swtpm")); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"no claim": {func(*testing.T, string) {}, unix.ENOENT},
		"a link in the claim's place": {func(t *testing.T, pod string) {
			writeFile(t, filepath.Join(pod, "elsewhere/swtpm/uuid/tpm2/state"))
			if err := os.MkdirAll(filepath.Join(pod, filepath.Dir(layout.StateDir)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/elsewhere", filepath.Join(pod, layout.StateDir)); err != nil {
				t.Fatal(err)
			}
		}, unix.ELOOP},
	} {
		t.Run(name, func(t *testing.T) {
			pod, root := podRoot(t)
			c.prepare(t, pod)
			if err := syncState(root); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// A launcher can create any number of files in its claim: a directory is not read as a whole.
func TestSyncStateReadsFewEntries(t *testing.T) {
	const many = 10000
	pod, root := podRoot(t)
	dir := filepath.Join(pod, layout.StateDir, "swtpm")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range many {
		if err := unix.Mknod(filepath.Join(dir, strconv.Itoa(i)), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	allocated := testing.AllocsPerRun(1, func() {
		if err := syncState(root); err == nil {
			t.Error("a claim with too many entries was accepted")
		}
	})
	if allocated > many/4 {
		t.Errorf("%.0f objects were allocated for a directory with %d entries", allocated, many)
	}
}

// What is neither a file nor a directory is left alone, wherever it is.
func TestSyncStateOpensFilesOnly(t *testing.T) {
	pod, root := podRoot(t)
	dir := filepath.Join(pod, layout.StateDir, "nvram")
	writeFile(t, filepath.Join(dir, "vm_VARS.fd"))
	if err := errors.Join(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.Symlink("/etc", filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "empty"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := syncState(root); err != nil {
		t.Error(err)
	}
}
