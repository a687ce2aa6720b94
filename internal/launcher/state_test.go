// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package launcher

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vireo-project/vireo/internal/launcherpod"
)

func TestMakeStateDirs(t *testing.T) {
	t.Run("of the Pod", func(t *testing.T) {
		dir := t.TempDir()
		authority := filepath.Join(dir, "authority")
		if err := makeStateDirs(filepath.Join(dir, "claim"), authority); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(authority); err != nil || !info.IsDir() {
			t.Errorf("the authority's directory: %v, %v", info, err)
		}
		if _, err := os.Lstat(filepath.Join(dir, "claim")); err == nil {
			t.Error("a claim's directory was created")
		}
	})
	t.Run("of a claim", func(t *testing.T) {
		claim := t.TempDir()
		// Several Pods use the claim one after the other, each with its own runtime directory.
		for range 2 {
			authority := filepath.Join(t.TempDir(), "authority")
			if err := makeStateDirs(claim, authority); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(claim, "swtpm-localca", "signkey.pem")
			if err := os.WriteFile(filepath.Join(authority, "signkey.pem"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("the authority's key is not persistent: %v", err)
			}
		}
		for _, name := range []string{"nvram", "swtpm"} {
			if info, err := os.Stat(filepath.Join(claim, name)); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v", name, info, err)
			}
		}
	})
	t.Run("of a claim that cannot be written", func(t *testing.T) {
		claim := filepath.Join(t.TempDir(), "claim")
		if err := os.WriteFile(claim, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := makeStateDirs(claim, filepath.Join(t.TempDir(), "authority")); err == nil {
			t.Error("no error")
		}
	})
}

func TestConfigureQEMU(t *testing.T) {
	image := filepath.Join("..", "..", "images", "virt-launcher", "rootfs", "usr", "share", "vireo", "libvirt",
		"qemu.conf")
	content, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	shipped := sharedDirs.FindSubmatch(content)
	if shipped == nil {
		t.Fatalf("%s has no line with shared_filesystems", image)
	}
	want := []string{"/var/run/kubevirt-private/vmi-disks", launcherpod.HotplugDisksDir, launcherpod.StateDir,
		launcherpod.TrackedDisksDir}
	if got := `"` + strings.Join(want, `", "`) + `"`; string(shipped[1]) != got {
		t.Errorf("the image's configuration shares %s, want %s", shipped[1], got)
	}
	present, own, missing := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "missing")
	from := filepath.Join(t.TempDir(), "qemu.conf")
	text := "max_core = 0\nshared_filesystems = [ \"" + missing + `", "` + own + `", "` + present + "\" ]\nmax_queued = 0\n"
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "qemu.conf")
	if err := configureQEMU(from, to, own); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	if want := "max_core = 0\nshared_filesystems = [ \"" + present + "\" ]\nmax_queued = 0\n"; string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	other := filepath.Join(t.TempDir(), "other.conf")
	if err := os.WriteFile(other, []byte("max_core = 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := configureQEMU(other, to); err == nil {
		t.Error("a configuration without shared directories was accepted")
	}
}
