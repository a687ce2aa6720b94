// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/wire/brokerapi"
	"github.com/vireo-project/vireo/test/kubelet"
)

// hostilePod returns a volume with files, for a test to tamper with, and the directory of Pods.
func hostilePod(t *testing.T, kind string, files map[string]string) (volume, pods string) {
	t.Helper()
	pods = t.TempDir()
	if err := kubelet.WriteVolume(pods, "uid", kind, "v", files); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pods, "outside"), []byte("secret of another"), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubelet.VolumeDir(pods, "uid", kind, "v"), pods
}

const (
	secrets    = "kubernetes.io~secret"
	configMaps = "kubernetes.io~configmap"
)

// Only the current version is read, whatever else is in the volume's directory.
func TestOtherEntriesOfAVolumeAreNotRead(t *testing.T) {
	dir, pods := hostilePod(t, secrets, map[string]string{"userdata": "#cloud-config"})
	for link, target := range map[string]string{"evil": "../../../../outside",
		"absolute": filepath.Join(pods, "outside")} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readFiles(dir); err != nil || string(got["userdata"]) != "#cloud-config" || len(got) != 1 {
		t.Errorf("got %q (%v)", got, err)
	}
}

func TestFilesReadsTheCurrentVersion(t *testing.T) {
	dir, pods := hostilePod(t, configMaps, map[string]string{"a": "1", "old": "x"})
	files := map[string]string{"a": "2", "sub/dir/b": "3", "empty": ""}
	if err := kubelet.WriteVolume(pods, "uid", configMaps, "v", files); err != nil {
		t.Fatal(err)
	}
	got, err := readFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]byte{"a": []byte("2"), "sub/dir/b": []byte("3"), "empty": {}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFilesStayInTheirVolume(t *testing.T) {
	for name, spoil := range map[string]func(pods, dir string) error{
		"a link out of the volume": func(pods, dir string) error {
			return os.Symlink(filepath.Join(pods, "outside"), filepath.Join(dir, "..data", "evil"))
		},
		"a link within the version": func(_, dir string) error { return os.Symlink("a", filepath.Join(dir, "..data", "b")) },
		"a pipe":                    func(_, dir string) error { return unix.Mkfifo(filepath.Join(dir, "..data", "pipe"), 0o600) },
		"a version out of the volume": func(pods, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "..data")), os.Symlink(pods, filepath.Join(dir, "..data")))
		},
		"no version": func(_, dir string) error { return os.Remove(filepath.Join(dir, "..data")) },
		"no volume":  func(_, dir string) error { return os.RemoveAll(dir) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, pods := hostilePod(t, secrets, map[string]string{"a": "1"})
			if err := spoil(pods, dir); err != nil {
				t.Fatal(err)
			}
			if got, err := readFiles(dir); err == nil || brokerapi.CodeOf(err) == brokerapi.CodeTooMuch {
				t.Errorf("got %v (%v)", got, err)
			}
		})
	}
}

func TestFilesAreCapped(t *testing.T) {
	many := map[string]string{}
	for i := range brokerapi.MaxFiles + 1 {
		many[fmt.Sprint(i)] = ""
	}
	half := strings.Repeat("x", brokerapi.MaxFileBytes/2)
	for name, tc := range map[string]struct {
		files   map[string]string
		allowed bool
	}{
		"the limit": {map[string]string{"a": half, "b": half}, true},
		"one more":  {map[string]string{"a": half, "b": half, "c": "x"}, false},
		"one large": {map[string]string{"a": half + half + "x"}, false},
		"many":      {many, false},
		"deep":      {map[string]string{strings.Repeat("d/", maxDepth) + "f": ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := hostilePod(t, "kubernetes.io~downward-api", tc.files)
			_, err := readFiles(dir)
			if (brokerapi.CodeOf(err) == brokerapi.CodeTooMuch) == tc.allowed || tc.allowed && err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A ConfigMap has room for a hundred thousand empty files, of which the names alone would take 50 MiB.
func TestNamesOfFilesAreCapped(t *testing.T) {
	dir, _ := hostilePod(t, configMaps, map[string]string{"a": "1"})
	for i := range 10 * brokerapi.MaxFiles {
		if err := os.WriteFile(filepath.Join(dir, "..data", fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readFiles(dir)
	runtime.ReadMemStats(&after)
	expectCode(t, err, brokerapi.CodeTooMuch)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("it took %d KiB", got>>10)
	}
}
