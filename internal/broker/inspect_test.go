// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/brokerapi"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
)

// inspected returns what inspect finds out about a path of this process.
func inspected(t *testing.T, path string) brokerapi.InspectResult {
	t.Helper()
	f, err := selfRoot(t).Open(path, unix.O_PATH)
	if err != nil {
		return brokerapi.InspectResult{}
	}
	defer func() { _ = f.Close() }()
	result, err := describe(f, true)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func selfRoot(t *testing.T) *podprocess.Root {
	t.Helper()
	root, err := podprocess.OpenRoot(self(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func TestInspect(t *testing.T) {
	regular := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(regular, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := regular + ".link"
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/dev/null": true, regular: false, "/nothing": false, link: true} {
		if got := inspected(t, path); (got.Mode&unix.S_IFMT == unix.S_IFCHR) != want {
			t.Errorf("%s has the mode %o", path, got.Mode)
		}
	}
	// Devices are never opened. The result for a regular file depends on its file system.
	for _, path := range []string{"/dev/null", "/nothing", "/"} {
		if inspected(t, path).DirectIO {
			t.Errorf("%s has direct I/O", path)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(regular, &fs); err != nil {
		t.Fatal(err)
	}
	if got := inspected(t, regular); got.BlockSize != uint(fs.Bsize) {
		t.Errorf("got %+v, want %d", got, fs.Bsize)
	}
}

func TestClaim(t *testing.T) {
	const minor = 232
	for _, tc := range []struct {
		name  string
		mode  uint32
		minor uint32
		owner uint32
		// onNode makes the Pod's device file the node's.
		onNode  bool
		refused bool
		// assigned is the dynamic minor number of the node's device, if it has one.
		assigned uint32
	}{
		{name: "a device of root", mode: 0o600, minor: minor, owner: layout.QEMUUser},
		{name: "a device for all", mode: 0o666, minor: minor},
		{name: "another device with the name", mode: 0o600, minor: 3},
		{name: "the node's own", mode: 0o600, minor: minor, onNode: true, refused: true},
		{name: "a dynamic minor number", mode: 0o600, minor: 257, owner: layout.QEMUUser, assigned: 257},
		{name: "another dynamic minor number", mode: 0o600, minor: 256, assigned: 257},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "device")
			if err := unix.Mknod(path, unix.S_IFCHR, int(unix.Mkdev(miscMajor, tc.minor))); err != nil {
				t.Skipf("needs to be root to make device files: %v", err)
			}
			if err := unix.Chmod(path, tc.mode); err != nil {
				t.Fatal(err)
			}
			fd, err := unix.Open(path, unix.O_PATH, 0)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), path)
			defer func() { _ = f.Close() }()
			node := path + "-of-the-node"
			if tc.onNode {
				node = path
			}
			wanted := uint32(minor)
			if tc.assigned != 0 {
				wanted = dynamicMinor
				if err := unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(miscMajor, tc.assigned))); err != nil {
					t.Fatal(err)
				}
			}
			if err := ownDevice(f, wanted, node); (err != nil) != tc.refused {
				t.Fatal(err)
			}
			var stat unix.Stat_t
			if err := unix.Stat(path, &stat); err != nil || stat.Uid != tc.owner {
				t.Errorf("belongs to %d (%v), want %d", stat.Uid, err, tc.owner)
			}
		})
	}
}
