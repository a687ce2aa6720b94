// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/test/kubelet"
)

// hostilePod returns a volume with files, and its directory for a test to tamper with.
func hostilePod(t *testing.T, kind string, files map[string]string) (v volume, dir string) {
	t.Helper()
	pods := t.TempDir()
	if err := kubelet.WriteVolume(pods, "uid", kind, "v", files); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pods, "outside"), []byte("secret of another"), 0o600); err != nil {
		t.Fatal(err)
	}
	return volume{podsDir: pods, pod: "uid", kind: kind, name: "v"}, kubelet.VolumeDir(pods, "uid", kind, "v")
}

const (
	secrets    = "kubernetes.io~secret"
	configMaps = "kubernetes.io~configmap"
)

func TestKeyStaysInItsVolume(t *testing.T) {
	v, dir := hostilePod(t, secrets, map[string]string{"userdata": "#cloud-config", "big": strings.Repeat("x", brokerapi.MaxFileBytes+1)})
	for link, target := range map[string]string{"evil": "../../../../outside", "absolute": filepath.Join(v.podsDir, "outside")} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := v.read([]string{"nothing", "userdata"}); err != nil || string(got["userdata"]) != "#cloud-config" || len(got) != 1 {
		t.Errorf("got %q (%v)", got, err)
	}
	for _, key := range []string{"evil", "absolute", "pipe", "../../../../outside", "/etc/passwd", "userdata\x00"} {
		if got, err := v.read([]string{key}); err == nil {
			t.Errorf("%s: got %q", key, got)
		}
	}
	if _, err := v.read([]string{"big"}); brokerapi.CodeOf(err) != brokerapi.CodeTooMuch {
		t.Errorf("a large file: %v", err)
	}
	if _, err := v.read([]string{"nothing"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	v.name = "other"
	if _, err := v.read([]string{"userdata"}); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing volume is not a missing key: %v", err)
	}
}

func TestFilesReadsTheCurrentVersion(t *testing.T) {
	v, _ := hostilePod(t, configMaps, map[string]string{"a": "1", "old": "x"})
	files := map[string]string{"a": "2", "sub/dir/b": "3", "empty": ""}
	if err := kubelet.WriteVolume(v.podsDir, types.UID(v.pod), configMaps, "v", files); err != nil {
		t.Fatal(err)
	}
	got, err := v.read(nil)
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
			v, dir := hostilePod(t, secrets, map[string]string{"a": "1"})
			if err := spoil(v.podsDir, dir); err != nil {
				t.Fatal(err)
			}
			if got, err := v.read(nil); err == nil || brokerapi.CodeOf(err) == brokerapi.CodeTooMuch {
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
			v, _ := hostilePod(t, "kubernetes.io~downward-api", tc.files)
			_, err := v.read(nil)
			if (brokerapi.CodeOf(err) == brokerapi.CodeTooMuch) == tc.allowed || tc.allowed && err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}
