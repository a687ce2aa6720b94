// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package devicerule

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
)

func isPod(element string) bool { return element == "podX" }

func TestCgroupOfAContainer(t *testing.T) {
	for _, tc := range []struct {
		name, text  string
		v2          bool
		controllers []string
		want        []string
	}{
		{"version 1", "5:devices:/kubepods/podX/c\n0::/\n", false, []string{"devices"}, []string{"kubepods/podX/c"}},
		{"version 1 after 2", "0::/a\n5:freezer,devices:/podX/c/d\n", false, []string{"freezer", "devices"}, []string{"podX/c", "podX/c/d"}},
		{"version 2", "0::/kubepods/podX/c/container\n", true, nil, []string{"kubepods/podX/c", "kubepods/podX/c/container"}},
		{"in no container", "0::/kubepods/podX\n", true, nil, nil},
		{"in another Pod", "0::/kubepods/podY/c\n", true, nil, nil},
		{"the devices elsewhere", "0::/kubepods/podX/c\n5:devices:/\n", false, []string{"devices"}, nil},
		{"above", "0::/../podX/c\n", true, nil, nil},
		{"nothing", "", false, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "cgroup"), []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			process, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = process.Close() }()
			all, err := podprocess.Cgroups(process)
			if err != nil {
				t.Fatal(err)
			}
			got := withDevices(all)
			if got.V2 != tc.v2 || !got.V2 && !slices.Equal(got.Controllers, tc.controllers) ||
				!slices.Equal(pathsOf(got, isPod), tc.want) {
				t.Errorf("%+v, %v, want %v", got, pathsOf(got, isPod), tc.want)
			}
			if tc.want == nil {
				if err := Set(process, isPod, nil); err == nil || len(all) > 0 && !errors.Is(err, ErrNotInPod) {
					t.Error(err)
				}
			}
		})
	}
}

func TestListOfVersion1(t *testing.T) {
	dir := t.TempDir()
	text := "c 1:3 rwm\nb *:* m\nb 8:16 rw\nb 8:32 rwm\nb 8:48 r\nb 7:113 rw\nb x:1 rw\n"
	if err := os.WriteFile(filepath.Join(dir, "devices.list"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"devices.allow", "devices.deny"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	l := list{f}
	if added, err := l.added(); err != nil || !slices.Equal(added, []Device{{8, 16}, disk}) {
		t.Errorf("%v, %v", added, err)
	}
	if err := l.set([]Device{disk, other}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"devices.allow": "b 7:114 rw", "devices.deny": "b 8:16 rw"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// The kernel of a node with version 1 merges the rules for a device, so that those of a runtime are never taken for
// ones of this package.
func TestListOfTheKernel(t *testing.T) {
	const root = "/sys/fs/cgroup/devices"
	if _, err := os.Stat(filepath.Join(root, "devices.list")); err != nil {
		t.Skip("needs cgroup v1:", err)
	}
	dir, err := os.MkdirTemp(root, "vireo-test-")
	if err != nil {
		t.Skip("cannot make a cgroup:", err)
	}
	defer func() { _ = os.Remove(dir) }()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	l := list{f}
	for name, rules := range map[string][]string{"devices.deny": {"a"},
		"devices.allow": {"c 1:3 rwm", "b *:* m", "b 7:115 rwm"}} {
		for _, rule := range rules {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(rule), 0); err != nil && name == "devices.allow" {
				t.Fatal(err)
			}
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "devices.deny"), []byte("a"), 0); err != nil {
		t.Fatal(err)
	}
	for _, rule := range []string{"b *:* m", "b 7:115 rwm"} {
		if err := os.WriteFile(filepath.Join(dir, "devices.allow"), []byte(rule), 0); err != nil {
			t.Fatal(err)
		}
	}
	runtimes := Device{Major: 7, Minor: 115}
	for _, want := range [][]Device{{disk}, {disk, other, runtimes}, nil} {
		if err := l.set(want); err != nil {
			t.Fatal(err)
		}
		added, err := l.added()
		if want := slices.DeleteFunc(want, func(d Device) bool { return d == runtimes }); err != nil ||
			!slices.Equal(added, want) {
			t.Errorf("%v, %v, want %v", added, err, want)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "devices.list")); err != nil ||
		string(text) != "b *:* m\nb 7:115 rwm\n" {
		t.Errorf("%q, %v", text, err)
	}
}
