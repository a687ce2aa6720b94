// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package tail_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/launcher/tail"
)

func TestCreateImage(t *testing.T) {
	write := func(content string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(content), 0o600) }
	}
	for _, tc := range []struct {
		name      string
		prepare   func(path string) error
		arguments string
		size      int64
		err       string
	}{
		{"an empty claim", nil, "3146000 0 10", 3 << 20, ""},
		{"a small disk", nil, "1100 0 10", 1024, ""},
		{"an interrupted creation", write(""), "3146000 0 10", 3 << 20, ""},
		{"a disk of the tenant", write("data"), "3146000 0 10", 4, ""},
		{"a pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }, "3146000 0 10", 0, ""},
		{"a link", func(path string) error { return os.Symlink("elsewhere", path) }, "3146000 0 10", -1, "open "},
		{"too large", nil, "9000000000000000000 0 10", 0, "not enough space for a disk of 9000000000000000000 bytes"},
		{"too large with the reserve", nil, "3146000 9000000000000000000 10", 0, "not enough space"},
		{"no number", nil, "1Gi 0 10", -1, "1Gi"},
		{"too few arguments", nil, "3146000", -1, "want SIZE RESERVE PERCENT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "disk.img")
			if tc.prepare != nil {
				if err := tc.prepare(path); err != nil {
					t.Fatal(err)
				}
			}
			err := tail.CreateImage(path, strings.Fields(tc.arguments))
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("got %v, want %q", err, tc.err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "elsewhere")); err == nil {
				t.Error("it followed a link")
			}
			if tc.size < 0 {
				return
			}
			info, err := os.Lstat(path)
			if err != nil || info.Size() != tc.size {
				t.Errorf("got %v, %v, want %d bytes", info, err, tc.size)
			}
		})
	}
}
