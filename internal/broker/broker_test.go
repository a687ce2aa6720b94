// SPDX-License-Identifier: Apache-2.0
// Copyright The Vireo Authors

package broker

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vireo-project/vireo/internal/broker/podprocess"
	"github.com/vireo-project/vireo/internal/launcherpod/layout"
	"github.com/vireo-project/vireo/internal/wire/brokerapi"
)

// podRoot returns a Pod's root directory, and the broker's open reference to it.
func podRoot(t *testing.T) (string, *podprocess.Root) {
	t.Helper()
	pod, process := t.TempDir(), t.TempDir()
	if err := os.Symlink(pod, filepath.Join(process, "root")); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(process)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	root, err := podprocess.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return pod, root
}

func writeFile(t *testing.T, name string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte("state"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestSyncStateStaysInTheClaim(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, pod string)
		want    error
	}{
		"as it should be": {func(t *testing.T, pod string) {
			writeFile(t, filepath.Join(pod, layout.StateDir, "swtpm/uuid/tpm2/state"))
		}, nil},
		"a link in the claim": {func(t *testing.T, pod string) {
			writeFile(t, filepath.Join(pod, layout.StateDir, "else"))
			if err := os.Symlink("/elsewhere", filepath.Join(pod, layout.StateDir, "swtpm")); err != nil {
				t.Fatal(err)
			}
		}, nil},
		"no claim": {func(*testing.T, string) {}, unix.ENOENT},
		"a link in the claim's place": {func(t *testing.T, pod string) {
			writeFile(t, filepath.Join(pod, "elsewhere/swtpm/uuid/tpm2/state"))
			if err := os.MkdirAll(filepath.Join(pod, filepath.Dir(layout.StateDir)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/elsewhere", filepath.Join(pod, layout.StateDir)); err != nil {
				t.Fatal(err)
			}
		}, unix.ELOOP},
	} {
		t.Run(name, func(t *testing.T) {
			pod, root := podRoot(t)
			c.prepare(t, pod)
			if err := syncState(root); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// A launcher can create any number of files in its claim: a directory is not read as a whole.
func TestSyncStateReadsFewEntries(t *testing.T) {
	const many = 10000
	pod, root := podRoot(t)
	dir := filepath.Join(pod, layout.StateDir, "swtpm")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range many {
		if err := unix.Mknod(filepath.Join(dir, strconv.Itoa(i)), unix.S_IFREG|0o600, 0); err != nil {
			t.Fatal(err)
		}
	}
	allocated := testing.AllocsPerRun(1, func() {
		if err := syncState(root); err == nil {
			t.Error("a claim with too many entries was accepted")
		}
	})
	if allocated > many/4 {
		t.Errorf("%.0f objects were allocated for a directory with %d entries", allocated, many)
	}
}

// What is neither a file nor a directory is left alone, wherever it is.
func TestSyncStateOpensFilesOnly(t *testing.T) {
	pod, root := podRoot(t)
	dir := filepath.Join(pod, layout.StateDir, "nvram")
	writeFile(t, filepath.Join(dir, "vm_VARS.fd"))
	if err := errors.Join(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600), os.Symlink("/etc", filepath.Join(dir, "link")),
		os.Mkdir(filepath.Join(dir, "empty"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := syncState(root); err != nil {
		t.Error(err)
	}
}

// inspected returns what inspect finds out about a path of this process.
func inspected(t *testing.T, path string) brokerapi.InspectResult {
	t.Helper()
	f, err := selfRoot(t).Open(path, unix.O_PATH)
	if err != nil {
		return brokerapi.InspectResult{}
	}
	defer func() { _ = f.Close() }()
	result, err := describe(f, brokerapi.InspectArguments{DirectIO: true})
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

func TestSELinuxContext(t *testing.T) {
	const context = "system_u:object_r:container_file_t:s0:c1,c2"
	dir := t.TempDir()
	enabled, disabled := filepath.Join(dir, "enabled"), filepath.Join(dir, "disabled")
	if err := errors.Join(os.WriteFile(enabled, []byte("nodev\tproc\nnodev\tselinuxfs\n\text4\n"), 0o600),
		os.WriteFile(disabled, []byte("nodev\tproc\n\text4\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	open := func(path string) *os.File {
		f, err := selfRoot(t).Open(path, unix.O_PATH)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	labeled := filepath.Join(dir, "labeled")
	if err := os.WriteFile(labeled, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// Without a context, an error is wanted.
	for name, test := range map[string]struct{ attribute, types, want string }{
		"a node without SELinux":  {context + "\x00", disabled, brokerapi.NoSELinux},
		"a node without a policy": {"", enabled, brokerapi.NoSELinux},
		"what the kernel appends": {context + "\x00", enabled, context},
		"nothing appended":        {context, enabled, context},
		"longer than any context": {strings.Repeat("x", maxSELinuxContext+1), enabled, ""},
		"no list of file systems": {context, filepath.Join(dir, "missing"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_ = unix.Removexattr(labeled, "security.selinux")
			if test.attribute != "" {
				if err := unix.Setxattr(labeled, "security.selinux", []byte(test.attribute), 0); err != nil {
					t.Skip("this needs root and a file system with extended attributes: ", err)
				}
			}
			if got, err := selinuxContext(open(labeled), test.types); got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
		})
	}
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

func TestOwnDevice(t *testing.T) {
	const minor = 232
	device := func(t *testing.T, name string, kind, mode, minor uint32) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := unix.Mknod(path, kind, int(unix.Mkdev(10, minor))); err != nil {
			t.Skipf("needs to be root to make device files: %v", err)
		}
		if err := unix.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct {
		name              string
		kind, mode, minor uint32
		owner             uint32
		// onNode makes the Pod's device file the node's, and missing is a node without the device.
		onNode, missing bool
		refused         bool
	}{
		{name: "a device of root", kind: unix.S_IFCHR, mode: 0o600, minor: minor, owner: layout.QEMUUser},
		{name: "a device for all", kind: unix.S_IFCHR, mode: 0o666, minor: minor},
		{name: "another device with the name", kind: unix.S_IFCHR, mode: 0o600, minor: 3},
		{name: "a block device", kind: unix.S_IFBLK, mode: 0o600, minor: minor},
		{name: "the node's own", kind: unix.S_IFCHR, mode: 0o600, minor: minor, onNode: true, refused: true},
		{name: "a device that the node does not have", kind: unix.S_IFCHR, mode: 0o600, minor: minor, missing: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := device(t, "pod", tc.kind, tc.mode, tc.minor)
			node := device(t, "node", unix.S_IFCHR, 0o600, minor)
			if tc.onNode {
				node = path
			}
			if tc.missing {
				node += "-none"
			}
			fd, err := unix.Open(path, unix.O_PATH, 0)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), path)
			defer func() { _ = f.Close() }()
			if err := ownDevice(f, node); (err != nil) != tc.refused {
				t.Fatal(err)
			}
			var stat unix.Stat_t
			if err := unix.Stat(path, &stat); err != nil || stat.Uid != tc.owner {
				t.Errorf("belongs to %d (%v), want %d", stat.Uid, err, tc.owner)
			}
		})
	}
}
