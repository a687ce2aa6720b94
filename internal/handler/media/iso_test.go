// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package media

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestISOIsWhatOthersRead(t *testing.T) {
	if _, err := exec.LookPath("isoinfo"); err != nil {
		t.Skip("needs isoinfo (Debian package genisoimage)")
	}
	big := strings.Repeat("0123456789abcdef", 5000)
	files := map[string][]byte{
		"meta-data":                       []byte(`{"instance-id":"a.b"}`),
		"user-data":                       []byte(big),
		"network-config":                  []byte("version: 2\n"),
		"openstack/latest/meta_data.json": []byte("{}"),
		"empty":                           {},
	}
	data, err := buildISO("cidata", files)
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "iso")
	if err := os.WriteFile(image, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if label := isoinfo(t, "-d", "-i", image); !strings.Contains(label, "Volume id: cidata") {
		t.Errorf("no volume label cidata in:\n%s", label)
	}
	// Rock Ridge is what Linux prefers, Joliet what Windows reads.
	for _, names := range []string{"-R", "-J"} {
		for name, want := range files {
			got := isoinfo(t, names, "-i", image, "-x", "/"+name)
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s %s: %.300s", names, name, diff)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "media-*"))
	if err != nil || len(left) != 0 {
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
