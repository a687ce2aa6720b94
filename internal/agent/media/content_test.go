// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

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

	"github.com/vireo-project/vireo/test/kubelet"
)

// hostilePod returns the content of a Pod whose volume has files, and the directory of that volume for a test to tamper with.
func hostilePod(t *testing.T, kind VolumeKind, files map[string]string) (content PodContent, dir string) {
	t.Helper()
	pods := t.TempDir()
	if err := kubelet.WriteVolume(pods, "uid", string(kind), "v", files); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pods, "outside"), []byte("secret of another"), 0o600); err != nil {
		t.Fatal(err)
	}
	return PodContent{PodsDir: pods, Pod: "uid"}, kubelet.VolumeDir(pods, "uid", string(kind), "v")
}

func TestSecretStaysInItsVolume(t *testing.T) {
	s, dir := hostilePod(t, SecretVolume, map[string]string{"userdata": "#cloud-config", "big": strings.Repeat("x", 3*maxCloudInit)})
	for link, target := range map[string]string{"evil": "../../../../outside", "absolute": filepath.Join(s.PodsDir, "outside")} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Secret("v", "nothing", "userdata"); err != nil || string(got) != "#cloud-config" {
		t.Errorf("got %q (%v)", got, err)
	}
	for _, key := range []string{"evil", "absolute", "pipe"} {
		if got, err := s.Secret("v", key); err == nil {
			t.Errorf("%s: got %q", key, got)
		}
	}
	if got, err := s.Secret("v", "big"); err != nil || len(got) != maxCloudInit+1 {
		t.Errorf("got %d bytes (%v)", len(got), err)
	}
	if _, err := s.Secret("v", "nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want fs.ErrNotExist", err)
	}
	if _, err := s.Secret("other", "userdata"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing volume is not a missing key: %v", err)
	}
}

func TestFilesReadsTheCurrentVersion(t *testing.T) {
	c, _ := hostilePod(t, ConfigMapVolume, map[string]string{"a": "1", "old": "x"})
	files := map[string]string{"a": "2", "sub/dir/b": "3", "empty": ""}
	if err := kubelet.WriteVolume(c.PodsDir, c.Pod, string(ConfigMapVolume), "v", files); err != nil {
		t.Fatal(err)
	}
	got, err := c.Files(ConfigMapVolume, "v")
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
			c, dir := hostilePod(t, SecretVolume, map[string]string{"a": "1"})
			if err := spoil(c.PodsDir, dir); err != nil {
				t.Fatal(err)
			}
			if got, err := c.Files(SecretVolume, "v"); err == nil || errors.Is(err, ErrTooMuch) {
				t.Errorf("got %v (%v)", got, err)
			}
		})
	}
}

func TestFilesAreCapped(t *testing.T) {
	many := map[string]string{}
	for i := range maxFiles + 1 {
		many[fmt.Sprint(i)] = ""
	}
	half := strings.Repeat("x", maxFileBytes/2)
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
			c, _ := hostilePod(t, DownwardAPIVolume, tc.files)
			_, err := c.Files(DownwardAPIVolume, "v")
			if errors.Is(err, ErrTooMuch) == tc.allowed || tc.allowed && err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}
