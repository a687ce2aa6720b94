// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package cgroup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	const hybrid = `proc /proc proc rw 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
cgroup /elsewhere cgroup rw,cpu 0 0
`
	tests := map[string]struct {
		mounts  string
		want    Tree
		unified bool
	}{
		"hybrid": {hybrid, Tree{
			{Mount: "/sys/fs/cgroup/cpuset", Options: []string{"rw", "relatime", "cpuset"}},
			{Mount: "/sys/fs/cgroup/systemd", Options: []string{"rw", "name=systemd"}},
			{Mount: "/sys/fs/cgroup/unified", V2: true},
		}, false},
		"v2":   {"cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n", Tree{{Mount: "/sys/fs/cgroup", V2: true}}, true},
		"none": {"proc /proc proc rw 0 0\n", nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parse(strings.NewReader(tt.mounts))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got.Unified() != tt.unified {
				t.Errorf("Unified() is %v", got.Unified())
			}
		})
	}
}

// A folder stands for a mounted hierarchy: what matters is which files are written.
func TestCreateInheritsAndEnables(t *testing.T) {
	v1, v2 := t.TempDir(), t.TempDir()
	write(t, filepath.Join(v1, "cpuset.cpus"), "0-3")
	write(t, filepath.Join(v1, "cpuset.mems"), "0")
	write(t, filepath.Join(v2, "cgroup.controllers"), "cpu memory")
	write(t, filepath.Join(v2, "cgroup.subtree_control"), "cpu memory")
	tree := Tree{{Mount: v1, Options: []string{"cpuset"}}, {Mount: v2, V2: true}}
	if err := tree.Create("/ours"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(v1, "ours", "cpuset.cpus"))
	if err != nil || string(got) != "0-3" {
		t.Errorf("cpuset.cpus is %q, %v", got, err)
	}
	if !tree.Exists("/ours") || tree.Exists("/theirs") {
		t.Error("Exists does not distinguish our group from one that does not exist")
	}
}

func TestMissing(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "cgroup.controllers"), "cpuset cpu io memory pids\n")
	write(t, filepath.Join(root, "cgroup.subtree_control"), "memory pids\n")
	got, err := Tree{{Mount: root, V2: true}}.Missing()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"cpuset", "cpu", "io"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProcessesAreThoseOfTheWholeSubtree(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	write(t, filepath.Join(one, "ours", "cgroup.procs"), "12\n")
	write(t, filepath.Join(one, "ours", "node1", "cgroup.procs"), "30\n4\n0\n")
	write(t, filepath.Join(two, "ours", "cgroup.procs"), "12\n13\n")
	write(t, filepath.Join(two, "theirs", "cgroup.procs"), "99\n")
	got, err := Tree{{Mount: one}, {Mount: two}}.Processes("/ours")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{4, 12, 13, 30}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
