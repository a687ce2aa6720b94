// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestISOIsReadable(t *testing.T) {
	if _, err := exec.LookPath("isoinfo"); err != nil {
		t.Skip("needs isoinfo (Debian package genisoimage)")
	}
	for _, tc := range []struct {
		label string
		files map[string][]byte
		// views are Rock Ridge (-R), which Linux prefers, and Joliet (-J), which Windows reads.
		views []string
	}{
		{"cidata", map[string][]byte{
			"meta-data": []byte(`{"instance-id":"a.b"}`), "user-data": []byte(strings.Repeat("0123456789abcdef", 5000)),
			"network-config": []byte("version: 2\n"), "empty": {},
		}, []string{"-R", "-J"}},
		{"config-2", map[string][]byte{
			"openstack/latest/meta_data.json": []byte("{}"), "openstack/latest/user_data": []byte("#cloud-config"),
			"openstack/latest/network_data.json": []byte(strings.Repeat("x", 4096)),
		}, []string{"-R"}},
		{"as many as there may be", manyFiles(), []string{"-R", "-J"}},
		{"longest", map[string][]byte{
			strings.Repeat("n", maxNameBytes): []byte("1"), strings.Repeat("n", maxNameBytes-1): []byte("2"), "a": []byte("3"), "z": []byte("4"),
		}, []string{"-R"}},
		{"no files", nil, nil},
		{strings.Repeat("l", maxLabelBytes), map[string][]byte{"a": []byte("1")}, []string{"-R", "-J"}},
	} {
		t.Run(tc.label, func(t *testing.T) {
			data, err := buildISO(tc.label, tc.files)
			if err != nil {
				t.Fatal(err)
			}
			image := filepath.Join(t.TempDir(), "iso")
			if err := os.WriteFile(image, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if label := isoinfo(t, "-d", "-i", image); !strings.Contains(label, "Volume id: "+tc.label+"\n") {
				t.Errorf("no volume label %s in:\n%s", tc.label, label)
			}
			for _, view := range tc.views {
				for name, want := range tc.files {
					got := isoinfo(t, view, "-i", image, "-x", "/"+name)
					if diff := cmp.Diff(string(want), got); diff != "" {
						t.Errorf("%s %s: %.300s", view, name, diff)
					}
				}
			}
		})
	}
}

// manyFiles returns files with similar names, more than fit into a directory's first sector.
func manyFiles() map[string][]byte {
	files := map[string][]byte{}
	for i := range 40 {
		files[fmt.Sprintf("application-config-%03d.properties", i)] = fmt.Append(nil, i)
	}
	return files
}

func TestBuildISORemovesItsDirectory(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	if _, err := buildISO("cidata", map[string][]byte{"user-data": []byte("secret")}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func isoinfo(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("isoinfo", args...).Output()
	if err != nil {
		t.Fatalf("isoinfo %v: %v", args, err)
	}
	return string(out)
}
